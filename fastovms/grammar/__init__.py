"""Compiles grammars, which say what a text must look like, and follows them token by token.

`GrammarCompiler` makes one `GrammarState` a sample from a JSON schema, an expression, a Lark
grammar or a tree. It knows neither the engine that draws tokens nor the API that a grammar came by.
"""
