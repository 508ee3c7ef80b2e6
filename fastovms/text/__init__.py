"""Prompts and answers as text: templates, tokens, formats of calls and reasoning, streams of text.

`TextStream` takes a sample's tokens to what a client sees, and `output_parser` finds calls and
thoughts in it. It knows neither HTTP nor the engine.
"""
