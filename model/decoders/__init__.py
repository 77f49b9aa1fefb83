"""Decoders: many images in flight, one slot each."""
