"""Texts of speech."""
