"""Answers `/embeddings`, `/rerank` and `/score`: vectors of texts, and scores of pairs.

It reads what clients send, makes tokens of it, and writes answers in each dialect.
"""
