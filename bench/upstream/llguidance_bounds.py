"""Reproduces schemas and expressions that the limits of llguidance do not bound, and numbers that
it changes.

    python bench/upstream/llguidance_bounds.py

It needs llguidance alone.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS = LLParserLimits(initial_lexer_fuel=400_000, step_lexer_fuel=100_000, step_max_items=5000)

SLOW = {
    "multipleOf: 99991": LLMatcher.grammar_from_json_schema(
        '{"type":"integer","multipleOf":99991}'
    ),
    "multipleOf: 499979": LLMatcher.grammar_from_json_schema(
        '{"type":"integer","multipleOf":499979}'
    ),
    "regex a? x 5,000": LLMatcher.grammar_from_regex("a?" * 5000),
    "regex a? x 10,000": LLMatcher.grammar_from_regex("a?" * 10_000),
}


def written(value: Any) -> str:
    """The only text that the constant allows."""
    tokenizer = LLTokenizer("byte")
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"const": value}))
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    text = matcher.compute_ff_bytes()
    return text.decode() if isinstance(text, bytes) else str(text)


def main() -> None:
    print(f"llguidance {llguidance.__version__}")
    for name, grammar in SLOW.items():
        start = time.process_time()
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=LIMITS)
        matcher.compute_bitmask()
        error = matcher.get_error().splitlines()[0] if matcher.is_error() else "compiles"
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{name}: {time.process_time() - start:.1f} s, at most {most} MiB so far: {error}")
    for value in (2**53 + 1, -(2**53) - 1, 2**64, 123456789.123456789):
        print(f"const {json.dumps(value)} is written as {written(value)}")


if __name__ == "__main__":
    main()
