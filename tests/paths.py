"""Paths of files that tests in several folders read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The checkout."""

FIXTURES = ROOT / "tests" / "text" / "fixtures"
"""Tokenizers as model directories."""

BYTE_LEVEL_TOKENIZER = FIXTURES / "byte_level" / "tokenizer.json"
TEMPLATES = ROOT / "tests" / "text" / "templates"
"""Chat templates of real models."""

TLS = ROOT / "tests" / "http" / "tls"
"""Certificates and keys."""

TINY_VLM = ROOT / "tests" / "models" / "tiny_vlm"
"""A vision model."""
