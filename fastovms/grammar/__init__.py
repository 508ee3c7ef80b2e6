"""Compiles grammars, which constrain texts, and applies them token by token.

`GrammarCompiler` makes one `GrammarState` per sample from a JSON schema, a regular expression, a
Lark grammar or a tree. It is independent of the engine and the API.
"""
