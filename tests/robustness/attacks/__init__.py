"""Attacks on a server, and how long they delay other clients."""
