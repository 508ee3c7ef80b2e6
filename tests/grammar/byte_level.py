"""A byte-level tokenizer, and a grammar to follow with it."""

from __future__ import annotations

from tests.paths import BYTE_LEVEL_TOKENIZER

TOKENIZER_JSON = BYTE_LEVEL_TOKENIZER.read_text()
EOS = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = [5, 6]
