"""Recipes in PNG files: writing them, reading them, and checking pictures against them."""
