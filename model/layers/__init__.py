"""Layers: each kind one module that owns its three views and its state."""
