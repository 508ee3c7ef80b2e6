"""Tests of `fastovms/grammar/patterns.py`: anchors mean the same in every tool call format."""

from __future__ import annotations

import json
import re

import pytest

from fastovms.grammar.json_schema import enforceable_schema
from fastovms.grammar.patterns import usable_patterns
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.vocabularies import vocabulary

TEXTS = ["a", "b", "ab", "xb", "bx", "xa", "ax", "a\\", "a$", "a\\$", "c", "ac", "xbc", "", "^b"]
PATTERNS = [
    "a|^b$", "(^a|b$)", r"^a\\$", r"^a\$", "^(a|b)$", "^a|b", "(^a|b)c", "a(b$|c)", "^a$|^b$",
    "(?:^a|b$)", "^^a$$", r"a\$", "$", "^", "^$", "(a|^)b", "[$^]", r"\^a", "(a|b)$|^c", "((^a))",
    "(?P<n>a|b$)", "a{1}$|^b{1,}", "", "|^a$", "^[ab]+$|^c", r"^\w$|x", "^(?:a|b$)",
]  # fmt: skip


@pytest.mark.parametrize("name", ["json", "qwen3coder", "minimax_m3", "gemma4", "hermes3"])
def test_pattern_is_an_unanchored_search_in_every_format(name: str) -> None:
    for pattern in PATTERNS:
        wanted = {text: re.search(pattern, text) is not None for text in TEXTS}
        schema, unenforced = enforceable_schema(
            {
                "type": "object",
                "properties": {"x": {"type": "string", "pattern": pattern}},
                "required": ["x"],
            }
        )
        assert not unenforced
        choice = CallChoice([Tool("f", schema)], required=True, parallel=False)
        grammar = call_grammar(TOOL_FORMATS[name], None, choice, prompt="")
        accepts = vocabulary().accepts
        found = {
            text: accepts(grammar, written_call(TOOL_FORMATS[name], "f", {"x": text})) is True
            for text in TEXTS
        }
        assert found == wanted, pattern


@pytest.mark.parametrize("pattern", ["x^a", "a$b", "(^a)?b", "(a", "a)"])
def test_pattern_whose_anchors_cannot_move_stays(pattern: str) -> None:
    assert usable_patterns(pattern) == [pattern]


def test_unicode_classes_are_enforced() -> None:
    schema = json.dumps({"type": "string", "pattern": r"^\p{Lu}\p{L}+\P{N}$"})
    grammar = Grammar(GrammarKind.JSON_SCHEMA, schema)
    accepts = vocabulary().accepts
    assert [accepts(grammar, f'"{text}"') for text in ("Äöx", "aöx", "Äö1")] == [True, False, False]
