"""Formats in which a call is a JSON object."""
