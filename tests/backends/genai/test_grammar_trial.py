"""Tests of the process that tries grammars with the pipeline's compiler."""

from __future__ import annotations

import json

from fastovms.params import Grammar, GrammarKind
from tests.backends.genai.test_backend import ask_process, grammar


def test_refusal_names_the_compiler() -> None:
    refusal = ask_process(5.0, grammar("(?<=a)b"))
    assert "by the compiler of the genai backend" in refusal.fault


def test_slow_grammar_ends_the_process() -> None:
    values = {f"p{i}": {"enum": [*range(100)]} for i in range(300)}
    slow = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"properties": values}))
    assert ask_process(0.02, slow).is_slow
