"""Checks what a request must pass before its handler: host, origin, API key, CORS, media type.

Each gate looks at the head of a request and lets it pass or answers it. None reads a body.
"""
