"""Reads what the files of a model's directory say: its context, its vocabulary, its end tokens.

It reads them before a backend loads the model, and chooses none.
"""
