"""Answers requests in both dialects: clients' JSON becomes requests of a backend, tokens become
answers.

`routes` adds all endpoints to a router; `chat` is the one to read first.
The API knows a model by `fastovms.backend.GenerationBackend`, and nothing of the engine or of
sockets.
"""
