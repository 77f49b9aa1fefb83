"""Attacks on a server, and what they cost an innocent client."""
