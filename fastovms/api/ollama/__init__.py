"""Answers Ollama's API: `/api/chat`, `/api/generate`, and what tells of models.

It says in Ollama's words what the other endpoints do, by the same pipeline.
"""
