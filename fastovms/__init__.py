"""An OpenAI-compatible LLM server for OpenVINO models.

`docs/architecture.md` describes the packages; `fastovms serve` starts the server.
"""

__version__ = "0.1.0"
