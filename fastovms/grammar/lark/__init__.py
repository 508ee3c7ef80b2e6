"""Reads and writes grammars in notations of rules: llguidance's Lark, GBNF, structural tags."""
