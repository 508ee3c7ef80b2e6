"""The HTTP API: converts clients' JSON to backend requests, and generated tokens to answers.

`app.routes` adds all endpoints to a router; `chat` is the endpoint to read first. The API uses a
model only through `fastovms.backend.GenerationBackend`, and knows neither the engine nor sockets.
"""
