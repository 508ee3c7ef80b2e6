"""Answers `/messages` and `/messages/count_tokens`, compatible with Anthropic's API.

Anthropic's content blocks are converted to a chat, which runs as in `api/chat`; the answer is
written as blocks.
"""
