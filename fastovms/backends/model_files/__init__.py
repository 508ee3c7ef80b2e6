"""Checks that a model's files are there, and reads what they say: its context, its vocabulary, its
end tokens.

It reads them before a backend loads the model, and chooses none.
"""
