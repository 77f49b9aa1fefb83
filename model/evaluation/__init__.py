"""Evaluation of a model: likelihood, sample quality, inpainting and loss of precision."""
