"""The network, its decoders, its data and its training."""
