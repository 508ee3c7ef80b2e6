"""The HTTP API: turns clients' JSON into backend requests, and generated tokens into answers.

`routes` adds all endpoints to a router; `chat` is the one to read first.
The API knows a model by `fastovms.backend.GenerationBackend`, and nothing of the engine or of
sockets.
"""
