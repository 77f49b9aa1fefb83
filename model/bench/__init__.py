"""How fast decoders are."""
