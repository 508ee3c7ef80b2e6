"""Answers `/completions`: prompts as text or token ids, suffixes, echo.

It knows no chats and keeps nothing after its answer.
"""
