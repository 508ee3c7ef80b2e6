"""Measures how a model runs fastest, and keeps the result."""
