"""Answers `/messages` and `/messages/count_tokens`, as Anthropic's clients ask for them.

It turns their blocks into a chat, runs it as `api/chat` does, and writes its answer as blocks.
"""
