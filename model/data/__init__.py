"""Data sets: published ones and folders of pictures."""
