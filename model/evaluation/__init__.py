"""Evaluation of models: likelihood, sample quality and the records of both."""
