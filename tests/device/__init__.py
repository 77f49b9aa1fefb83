"""Checks, timings and training for short sessions on a machine with a GPU."""
