"""A byte-level tokenizer, and generation with a grammar."""

from __future__ import annotations

from array import array

import numpy as np
from llguidance import LLTokenizer

from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar
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


def generate(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, grammar: Grammar, seed: int, use_forced: bool
) -> str:
    """Follows random logits to the end, and takes forced tokens if requested."""
    rng = np.random.default_rng(seed)
    state = compiler.start(grammar, len(PROMPT))
    token_ids = array("q", PROMPT)
    for _ in range(300):
        if use_forced:
            token_ids.extend(state.forced_tokens(token_ids))
        logits = rng.standard_normal(tokenizer.vocab_size + 3).astype(np.float32)
        logits[-3:] = 100  # ids beyond the tokenizer's are never allowed
        state(logits, token_ids)
        assert not state.error
        token_id = int(logits.argmax())
        if token_id == EOS:
            return str(tokenizer.decode_str(token_ids[len(PROMPT) :].tolist()))
        token_ids.append(token_id)
    raise AssertionError("the grammar never ended")
