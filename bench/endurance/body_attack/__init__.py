"""Hostile bodies: of every endpoint, those that are slow to read, and grammars of all kinds."""
