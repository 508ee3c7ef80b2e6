"""An OpenAI-compatible LLM server for OpenVINO models.

`docs/architecture.md` has the map of its rooms; `fastovms serve` starts it.
"""

__version__ = "0.1.0"
