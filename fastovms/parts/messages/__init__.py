"""Answers `/messages` and `/messages/count_tokens`, as Anthropic's clients ask for them.

Anthropic's content blocks are converted to a chat, which runs as in `api/chat`; the answer is
written as blocks.
"""
