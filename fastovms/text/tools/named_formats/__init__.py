"""Formats in which a call is a name and a JSON object, with markup between the two."""
