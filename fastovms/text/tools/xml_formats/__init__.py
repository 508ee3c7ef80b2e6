"""Formats in which a call is an element, and each argument one of its own."""
