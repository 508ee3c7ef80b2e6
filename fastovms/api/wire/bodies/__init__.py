"""Reads the JSON of a request, in time and memory that a hostile one cannot take from others."""
