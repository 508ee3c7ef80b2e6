"""Answers `/chat/completions` and `/tokenize`.

It prepares a chat, runs it and writes its answer. Responses are a room of their own.
"""
