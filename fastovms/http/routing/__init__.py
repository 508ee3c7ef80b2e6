"""What a handler sees of HTTP, and how a request finds its handler.

`Request`, `Response`, `Stream` and `Router` know nothing of sockets or framing.
"""
