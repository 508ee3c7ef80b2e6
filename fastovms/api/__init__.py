"""The endpoints of both dialects: clients' JSON to requests of a backend, tokens to answers.

`routes` adds them all to a router; the rooms below go from the wire (`wire`) to the endpoints.
The API knows a model by `fastovms.backend.Backend`, and nothing of the engine or of sockets.
"""
