"""Reads a text that arrives in pieces.

Parsers are written as computations over a `Scanner`, as if the whole text were there. The formats
of tool calls and of reasoning stand in rooms above and are not known here.
"""
