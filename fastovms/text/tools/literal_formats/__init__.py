"""Formats in which a call is written as in a programming language, its arguments as literals."""
