"""Decoders: the backends that draw many images at once, one slot each."""
