"""Turns chats into prompts and tokens into answers: templates, tokens, formats of calls and
reasoning, streams of text.

`TextStream` takes a sample's tokens to what a client sees, and `output_parser` finds calls and
thoughts in it. It knows neither HTTP nor the engine.
"""
