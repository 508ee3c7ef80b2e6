"""Hostile HTTP: mutated messages, and clients that leave at every stage."""
