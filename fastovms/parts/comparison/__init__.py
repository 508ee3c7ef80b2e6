"""Compares a rewritten model with its export."""
