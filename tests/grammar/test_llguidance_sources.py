"""Whatever the logits say, the text obeys."""

from __future__ import annotations

import json
import re

import pytest
from llguidance import LLTokenizer

from fastovms.grammar.grammar_compiler import GrammarCompiler
from fastovms.params import Grammar, GrammarKind
from tests.grammar.byte_level import SCHEMA, generate

GBNF = 'root ::= "x" ("1" | "2") end\nend ::= "."'

LARK = 'start: "x" ("1" | "2") "."'


@pytest.mark.parametrize("use_forced", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("kind", "source", "accepts"),
    [
        (GrammarKind.REGEX, "(ab){1,4}c?", lambda t: re.fullmatch("(ab){1,4}c?", t)),
        (GrammarKind.CHOICE, '["yes", "no", "\\"maybe\\""]', {"yes", "no", '"maybe"'}.__contains__),
        (GrammarKind.GRAMMAR, LARK, {"x1.", "x2."}.__contains__),
        (GrammarKind.GRAMMAR, GBNF, {"x1.", "x2."}.__contains__),
    ],
)
def test_text_obeys(
    compiler: GrammarCompiler,
    tokenizer: LLTokenizer,
    kind: GrammarKind,
    source: str,
    accepts: object,
    seed: int,
    use_forced: bool,
) -> None:
    text = generate(compiler, tokenizer, Grammar(kind, source), seed, use_forced)
    assert accepts(text)  # type: ignore[operator]


@pytest.mark.parametrize("use_forced", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_json_obeys_its_schema_and_is_compact(
    compiler: GrammarCompiler, tokenizer: LLTokenizer, seed: int, use_forced: bool
) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    text = generate(compiler, tokenizer, grammar, seed, use_forced)
    assert json.dumps(json.loads(text), separators=(",", ":"))
    assert " " not in re.sub(r'"[^"]*"', "", text)
    value = json.loads(text)
    assert set(value) <= set(SCHEMA["properties"])  # type: ignore[arg-type, call-overload]
    assert 0 <= value["age"] <= 120


def test_many_choices(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    source = json.dumps([f"v{i}" for i in range(10_000)])
    text = generate(compiler, tokenizer, Grammar(GrammarKind.CHOICE, source), 0, use_forced=True)
    assert text in json.loads(source)


def test_one_of_is_any_of(compiler: GrammarCompiler, tokenizer: LLTokenizer) -> None:
    kinds = [{"type": "object", "properties": {"k": {"const": k}}, "required": ["k"],
              "additionalProperties": False} for k in "ab"]  # fmt: skip
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"oneOf": kinds}))
    text = generate(compiler, tokenizer, grammar, 0, use_forced=True)
    assert json.loads(text) in ({"k": "a"}, {"k": "b"})
