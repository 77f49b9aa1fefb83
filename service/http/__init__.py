"""HTTP as every route speaks it."""
