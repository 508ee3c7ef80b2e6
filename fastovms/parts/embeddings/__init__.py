"""Vectors of texts, and scores of pairs of texts."""
