"""Tries clients' grammars in a separate process, whose crash does no harm."""
