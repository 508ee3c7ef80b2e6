"""Loads and unloads several models on demand."""
