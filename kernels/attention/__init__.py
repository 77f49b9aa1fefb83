"""Attention: definitions, and the forms that train."""
