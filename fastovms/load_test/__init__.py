"""Puts load on an OpenAI-compatible server and tells how it fares: `fastovms bench`."""
