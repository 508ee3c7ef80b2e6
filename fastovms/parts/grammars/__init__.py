"""Tries grammars in a process that may crash without harm."""
