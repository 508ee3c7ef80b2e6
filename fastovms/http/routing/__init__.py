"""Finds the handler of a request, and says what a handler sees of HTTP.

`Request`, `Response`, `Stream` and `Router` know nothing of sockets or framing.
"""
