"""Answers Ollama's API: `/api/chat`, `/api/generate`, and the endpoints that describe models.

It says in Ollama's words what the other endpoints do, by the same pipeline.
"""
