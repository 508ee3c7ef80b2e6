"""Compiles grammars, which constrain generated text, and applies them token by token.

`GrammarCompiler` creates one `GrammarState` per sample from a JSON schema, a regular expression, a
Lark grammar or a tree. Independent of the engine and the API.
"""
