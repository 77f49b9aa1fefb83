"""Attention in plain PyTorch: definitions and trainable forms."""
