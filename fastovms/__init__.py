"""OpenAI-compatible LLM server for OpenVINO models."""

__version__ = "0.1.0"
