"""Turns text into tokens and back: the tokenizer, detokenizers of streams, stop strings, positions.

It works for one text at a time and knows neither chats nor grammars.
"""
