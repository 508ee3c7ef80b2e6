"""Serves OpenVINO models by OpenAI's API: the whole server."""

__version__ = "0.1.0"
