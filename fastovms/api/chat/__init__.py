"""Answers `/chat/completions`.

It prepares a chat, runs it and writes its answer. It knows nothing of responses or of what is
stored.
"""
