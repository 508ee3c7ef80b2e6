"""Hostile HTTP: mutated messages, and clients that disconnect at every stage."""
