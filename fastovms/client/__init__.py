"""Asks OpenAI-compatible servers over HTTP/1.1, at little cost, since client and server often share
a machine."""
