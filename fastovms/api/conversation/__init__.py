"""Prepares what chats and responses share: messages, tools, the prompt of both, the answer's
grammar.

It knows neither endpoint's answers.
"""
