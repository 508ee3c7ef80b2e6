"""Answers Ollama's API: `/api/chat`, `/api/generate`, and the endpoints that describe models.
Requests run through the same pipeline as those of the other APIs."""
