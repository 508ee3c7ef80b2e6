"""Measures which settings run a model fastest, and stores the result."""
