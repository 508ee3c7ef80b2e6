"""Hostile request bodies: mutated bodies of every endpoint, slow bodies, and grammars."""
