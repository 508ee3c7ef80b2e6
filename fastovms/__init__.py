"""An OpenAI-compatible LLM server for OpenVINO models.

`docs/architecture.md` follows a request through its files; `fastovms serve` starts it.
"""

__version__ = "0.2.0"
