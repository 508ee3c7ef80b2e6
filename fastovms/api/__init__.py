"""The HTTP API: turns clients' JSON into backend requests, and generated tokens into answers.

`routes` adds all endpoints to a router; the modules are ordered from the wire (`wire`) to the
endpoints. The API uses a model only through `fastovms.backend.GenerationBackend`; it does not use
the engine or sockets.
"""
