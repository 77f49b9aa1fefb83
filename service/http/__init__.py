"""HTTP infrastructure that every route shares."""
