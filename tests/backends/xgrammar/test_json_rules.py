"""Tests of `fastovms/parts/genai/xgrammar/json_rules.py`."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import openvino_genai as genai
import pytest
from llguidance import LLMatcher

from fastovms.grammar.compiler import GrammarCompiler
from fastovms.grammar.finite_schema import Schema
from fastovms.params import Grammar, GrammarKind
from fastovms.parts.genai.xgrammar.json_rules import integers, json_rules, numbers, text_of_length
from fastovms.parts.genai.xgrammar.text_rules import CHARACTERS, UnsupportedSchema, rest_of_string
from fastovms.server_config import DEMO_MODEL
from tests.backends.xgrammar.repeating_pipeline import LENGTH, RepeatingPipeline

# Regular expressions of numbers, compared with the numbers themselves.


_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"|([ ])')


def python(expression: str | None) -> re.Pattern[str]:
    """Returns the regular expression in Python's syntax."""
    assert expression is not None
    found = _LITERAL.sub(lambda match: re.escape(match[1] or ""), expression)
    return re.compile(found)


BOUNDS = [None, -1234, -100, -11, -10, -7, -1, 0, 1, 5, 9, 10, 12, 99, 100, 120, 255, 65535]


@pytest.mark.parametrize("low", BOUNDS)
def test_integer_pattern_matches_exactly_the_integers_in_bounds(low: int | None) -> None:
    near = {edge + step for edge in BOUNDS if edge is not None for step in (-2, -1, 0, 1, 2, 10)}
    for high in BOUNDS:
        if low is not None and high is not None and low > high:
            assert integers(low, high) is None
            continue
        matches = python(integers(low, high)).fullmatch
        for number in near:
            fits = (low is None or low <= number) and (high is None or number <= high)
            assert (matches(str(number)) is not None) == fits, (low, high, number)
        assert not matches("01")
        assert not matches("1.0")


def test_integer_pattern_accepts_fractional_bounds() -> None:
    matches = python(integers(0.5, 3.9)).fullmatch
    assert [n for n in range(-1, 6) if matches(str(n))] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(40))
def test_number_pattern_matches_exactly_the_numbers_in_bounds(seed: int) -> None:
    rng = random.Random(seed)
    edges = [0, 1, -1, 0.5, -0.25, 99.25, -3.75, 100, 0.001, 1e-6, round(rng.uniform(-20, 20), 2)]
    low, high = sorted(rng.sample(edges, 2))
    bounds = [low if rng.random() < 0.8 else None, high if rng.random() < 0.8 else None]
    has_low, has_high = rng.random() < 0.7, rng.random() < 0.7
    matches = python(numbers(*bounds, has_low=has_low, has_high=has_high)).fullmatch
    for edge in edges:
        for step in ("0", "0.1", "-0.1", "0.003", "-0.003", "1", "-1", "10", "-0.000001"):
            number = Decimal(repr(edge)) + Decimal(step)
            text = format(number.normalize(), "f")
            fits = all(
                bound is None or sign * number > sign * Decimal(repr(bound))
                or (has_it and number == Decimal(repr(bound)))
                for bound, sign, has_it in ((bounds[0], 1, has_low), (bounds[1], -1, has_high))
            )  # fmt: skip
            if low != 0 != high or number != 0:  # -0 is the only non-number that may be included
                assert (matches(text) is not None) == fits, (bounds, has_low, has_high, text)


def test_numbers_between_bounds_are_matched() -> None:
    assert numbers(1, 0) is None
    assert numbers(1, 1, has_low=False) is None
    assert numbers(1.5, 1.5) == '"1.5"'
    for text in ("0", "-1.50", "1e9", "2.5E-3"):
        assert python(numbers(None, None)).fullmatch(text), text


# Strings with limited lengths.


def rules_of(least: int, most: int | None) -> str:
    rules = {"text": rest_of_string("text", CHARACTERS)}

    def add_rule(name: str, expression: Callable[[], str]) -> str:
        if name not in rules:
            rules[name] = expression()
        return name

    root = text_of_length(add_rule, least, most, "text")
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in rules.items())])


@pytest.mark.nightly(but=("2-50", "16-18", "0-64"))
@pytest.mark.parametrize(
    ("least", "most"),
    [(0, 0), (0, 1), (1, 1), (0, 16), (3, 16), (0, 17), (5, 17), (17, 17), (16, 18), (18, 40),
     (40, 43), (37, 37), (2, 50), (0, 64), (0, None), (1, None), (20, None)],
)  # fmt: skip
def test_just_the_lengths_between_the_bounds(
    pipeline: RepeatingPipeline, least: int, most: int | None
) -> None:
    config = genai.StructuredOutputConfig()
    config.grammar = rules_of(least, most)
    highest = 60 if most is None else most
    lengths = {0, 1, least - 1, least, least + 1, highest - 17, highest - 1, highest, highest + 1}
    for length in sorted(length for length in lengths if length >= 0):
        expected = least <= length and (most is None or length <= most)
        for text in (r"\n" * length, ("thé " * length)[:length]):
            assert pipeline.allows(config, f'{text}"') == expected, (length, text)


def test_a_quote_is_within_or_at_the_end(pipeline: RepeatingPipeline) -> None:
    config = genai.StructuredOutputConfig()
    config.grammar = rules_of(0, 100)
    assert pipeline.allows(config, r'say \"this\" and that"')
    assert not pipeline.allows(config, 'say "this" and that"')


def test_rules_do_not_grow_with_the_length() -> None:
    assert len(rules_of(0, 10**9).splitlines()) < 200


# The pipeline's grammar of a schema allows the same texts as llguidance's.


NUM_SAMPLES = 4
EOS = 2
SPECIALS = {
    token["id"] for token in json.loads((DEMO_MODEL / "tokenizer.json").read_text())["added_tokens"]
} - {EOS}
LIKELY = [*5 * ['"'], *"}}],:{[1290.-aeT"]


def obj(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], **more}


S, I, N, B = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))  # noqa: E741
NULL = {"type": "null"}
OPTIONAL = {"anyOf": [S, NULL], "default": None, "title": "Nickname"}
PERSON = obj({"name": S, "age": I}, "name", "age")
ADDRESS = obj({"street": S, "zip": {"type": "string", "pattern": r"^\d{5}$"}}, "street")

SCHEMAS: dict[str, Schema] = {
    # instructor and pydantic
    "flat": PERSON,
    "optional": obj({"name": S, "nickname": OPTIONAL, "age": I}, "name"),
    "all optional": obj({"a": I, "b": S, "c": B}),
    "last required": obj({"a": I, "b": S, "c": B}, "c"),
    "nested": {"$defs": {"Address": ADDRESS}, **obj({"a": {"$ref": "#/$defs/Address"}}, "a")},
    "list of models": {"$defs": {"P": PERSON}, **obj(
        {"tasks": {"type": "array", "items": {"$ref": "#/$defs/P"}}}, "tasks")},
    "recursive": {"$defs": {"Node": obj({"v": I, "next": {"anyOf": [
        {"$ref": "#/$defs/Node"}, NULL], "default": None}}, "v")}, "$ref": "#/$defs/Node"},
    "root of itself": obj({"n": I, "children": {"type": "array", "items": {"$ref": "#"}}}, "n"),
    "enum": obj({"role": {"enum": ["admin", "user", "a/b", "é\n"], "type": "string"}}, "role"),
    "literal": obj({"kind": {"const": "x", "title": "Kind"}, "n": {"const": 3}}, "kind"),
    "enum of everything": {"enum": ["a", 1, 1.5, None, True, {"x": 1, "y": [2, {}]}, []]},
    "constraints": obj({"age": {"type": "integer", "minimum": 0, "maximum": 120},
                        "score": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                        "name": {"type": "string", "minLength": 1, "maxLength": 9}}, "age"),
    "lengths": obj({"a": {"type": "string", "maxLength": 20},
                    "b": {"type": "string", "minLength": 18, "maxLength": 40},
                    "c": {"type": "string", "minLength": 20}}, "a", "b", "c"),
    "exclusive": {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 5}},
    "negative": {"type": "array", "items": {"type": "number", "minimum": -7.25, "maximum": -0.5}},
    "tuple": obj({"p": {"type": "array", "prefixItems": [N, N], "minItems": 2, "maxItems": 2}}),
    "open tuple": {"type": "array", "prefixItems": [I, S], "items": B},
    "old tuple": {"type": "array", "items": [I, S], "additionalItems": False, "minItems": 1},
    "counted list": {"type": "array", "items": I, "minItems": 2, "maxItems": 3},
    "dict": obj({"scores": {"type": "object", "additionalProperties": I}}, "scores"),
    "union": obj({"v": {"anyOf": [I, S, {"type": "array", "items": I}]}}, "v"),
    "types": obj({"v": {"type": ["integer", "null", "boolean"]}}, "v"),
    "constrained types": {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
    "discriminated": {"$defs": {"Cat": obj({"kind": {"const": "cat"}, "lives": I}, "kind"),
                                "Dog": obj({"kind": {"const": "dog"}, "name": S}, "kind")},
                      "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                      "discriminator": {"propertyName": "kind"}},
    "default of a reference": {"$defs": {"A": ADDRESS}, **obj(
        {"a": {"allOf": [{"$ref": "#/$defs/A"}], "default": {}, "description": "where"}})},
    "dates": obj({"at": {"type": "string", "format": "date-time"},
                  "day": {"type": "string", "format": "date"}}, "at"),
    "formats": {"anyOf": [{"type": "string", "format": name} for name in (
        "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "path")]},
    "any": obj({"payload": {}, "n": I}, "payload"),
    "empty": {},
    "no properties": obj({}),
    "object": {"type": "object"},
    "extra allowed": obj({"name": S, "na": I}, "name", additionalProperties=True),
    "extra of a type": obj({"name": S}, "name", additionalProperties=I),
    "extra forbidden": {**PERSON, "additionalProperties": False},
    # LangChain, litellm, smolagents, Codex, OpenAI's agents
    "tool": obj({"location": {"type": "string", "description": "City and state"},
                 "unit": {"type": "string", "enum": ["c", "f"]}}, "location"),
    "without a type": {"properties": {"query": S, "limit": I}, "required": ["query"]},
    "plan": obj({"plan": {"type": "array", "items": obj(
        {"step": S, "status": {"type": "string", "enum": ["pending", "completed"]}},
        "step", "status", additionalProperties=False)}}, "plan", additionalProperties=False),
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
    # Composed schemas, as in OpenAPI documents
    "all of": {"allOf": [PERSON, obj({"email": S}, "email")]},
    "inherited": {"$defs": {"Base": PERSON}, "allOf": [{"$ref": "#/$defs/Base"}],
                  **obj({"more": B}, "more")},
    "one or the other": {**obj({"a": I, "b": I}),
                         "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "any of beside": {**obj({"id": I}, "id"), "anyOf": [obj({"a": S}, "a"), obj({"b": S}, "b")]},
    "unevaluated": {"allOf": [obj({"a": I})], "unevaluatedProperties": B},
    "required elsewhere": obj({"a": I}, "z"),
    "counted names": {"type": "object", "additionalProperties": I, "minProperties": 1,
                      "maxProperties": 2},
    "patterns": obj({"a": {"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]+(a|b)?$"},
                     "b": {"type": "string", "pattern": "x.y"},
                     "c": {"type": "string", "pattern": r'^[^a-z]"\\?\s|\w+$'}}),
    "pattern of names": {"type": "object", "patternProperties": {"^x_[0-9]$": I},
                         "additionalProperties": False},
    "names to be spelled": obj({'q"': I, "back\\slash": I, "ü": I, "a\nb": I, "a/b": I}),
}  # fmt: skip


class _Compiler:
    """llguidance's grammars with the pipeline's vocabulary."""

    def __init__(self) -> None:
        text = (DEMO_MODEL / "tokenizer.json").read_text()
        self._compiler = GrammarCompiler(text, vocab_size=1536, eos_token_ids=[EOS])

    def matcher(self, grammar: Grammar) -> LLMatcher:
        return self._compiler.compile(grammar).matcher.deep_copy()

    def sample(self, grammar: Grammar, likely: list[int], rng: random.Random) -> list[int]:
        """Returns the tokens of a text, with the end token if it has ended."""
        matcher = self.matcher(grammar)
        found: list[int] = []
        while len(found) < LENGTH - 2:
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            bits = np.unpackbits(mask, bitorder="little")
            fitting = [token_id for token_id in likely if bits[token_id]]
            some = fitting if fitting and rng.random() < 0.9 else np.flatnonzero(bits).tolist()
            found.append(EOS if bits[EOS] and rng.random() < 0.5 else rng.choice(some))
            if found[-1] == EOS:
                break
            matcher.consume_token(found[-1])
        return found

    def allowed(self, grammar: Grammar, token_ids: list[int]) -> list[int]:
        """Returns the tokens up to the first that the grammar does not allow."""
        matcher = self.matcher(grammar)
        count = matcher.validate_tokens(token_ids)
        return token_ids[:count]


@pytest.fixture(scope="module")
def compiler() -> _Compiler:
    return _Compiler()


def output(rules: str) -> genai.StructuredOutputConfig:
    config = genai.StructuredOutputConfig()
    config.grammar = rules
    return config


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_rules_and_llguidance_allow_the_same_texts(
    pipeline: RepeatingPipeline, compiler: _Compiler, name: str
) -> None:
    schema = SCHEMAS[name]
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    rules = output(json_rules(schema))
    decode = pipeline.tokenizer.decode
    rng = random.Random(name)
    likely = [pipeline.tokenizer.encode(word)[0] for word in LIKELY]
    for _ in range(NUM_SAMPLES):
        theirs = compiler.sample(grammar, likely, rng)
        ended = theirs if theirs[-1] == EOS else [*theirs, EOS]
        found = pipeline.allowed(rules, [t for t in theirs if t != EOS])
        assert found == ended[: len(theirs)], (decode(theirs), decode(found))
        ours = _without_specials(pipeline, rules, likely, rng)
        found = compiler.allowed(grammar, ours)
        assert found == ours, (decode(ours), decode(found))


def _without_specials(
    pipeline: RepeatingPipeline,
    rules: genai.StructuredOutputConfig,
    likely: list[int],
    rng: random.Random,
) -> list[int]:
    """Returns a sample of the pipeline, which reads special tokens as their text."""
    while True:
        found = pipeline.sample(rules, rng.choices(likely, k=LENGTH), rng.randrange(2**32))
        if not {*found} & SPECIALS:
            return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer", "multipleOf": 5}, "multipleOf is not supported"),
        ({"type": "string", "pattern": "a", "maxLength": 5}, "with another one or with a length"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "that apply together"),
        ({"type": "string", "pattern": r"(?i)a"}, "something in a pattern"),
        ({"type": "string", "pattern": "["}, "something in a pattern"),
        (
            {"type": "object", "patternProperties": {"a": I}},
            "patternProperties with other properties",
        ),
        (obj({"a": I, "b": I}, "a", minProperties=2), "with optional properties"),
        ({"type": "object", "required": ["a"]}, "required without properties"),
        ({"enum": ["a", "bc"], "maxLength": 1}, "enum or const with other keywords"),
    ],
    ids=str,
)
def test_schema_without_rules_is_refused_by_keyword(schema: Schema, reason: str) -> None:
    with pytest.raises(UnsupportedSchema, match=reason):
        json_rules(schema)


@pytest.mark.parametrize("schema", [False, {"allOf": [S, I]}, {"type": "integer", "minimum": 5,
                                                              "maximum": 4}])  # fmt: skip
def test_unsatisfiable_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(ValueError, match=r"(no value|nothing) satisfies"):
        json_rules(schema)


def test_blanks_are_allowed_only_if_requested(pipeline: RepeatingPipeline) -> None:
    schema = obj({"a": {"type": "array", "items": I}, "b": I}, "a", "b")
    loose, compact = '{"a": [1, 2],"b": 3}', '{"a":[1,2],"b":3}'
    for has_blanks in (False, True):
        rules = output(json_rules(schema, has_blanks=has_blanks))
        assert pipeline.allows(rules, compact)
        assert pipeline.allows(rules, loose) == has_blanks
        assert not pipeline.allows(rules, '{"a":  [1],"b":3}')


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (obj({"a": I}, "a"), '{"a":' + " " * 60 + "1}"),
        ({"type": "integer", "minimum": 0, "maximum": 120}, "129"),
        ({"type": "integer", "exclusiveMinimum": 5}, "3"),
        ({"type": "number", "minimum": -7.25, "maximum": -0.5}, "-7.26"),
        ({"type": "integer", "multipleOf": 5}, "6"),
        ({"type": "string", "pattern": "x.y"}, '"x"y"'),
        ({"enum": ["a", "bc"], "maxLength": 1}, '"bc"'),
        (obj({"a": I}, "a", additionalProperties=I), '{"a":1,"a":3}'),
        ({"type": "object", "required": ["a"], "additionalProperties": I}, "{}"),
    ],
    ids=str,
)
def test_xgrammars_own_reader_allows_what_a_schema_forbids(
    pipeline: RepeatingPipeline, schema: Schema, wrong: str
) -> None:
    """The rules of `json_rules` work around these faults: if a row fails with a new version of
    OpenVINO GenAI, they are no longer needed."""
    config = genai.StructuredOutputConfig()
    config.json_schema = json.dumps(schema)
    assert pipeline.allows(config, wrong)
    with contextlib.suppress(UnsupportedSchema):
        assert not pipeline.allows(output(json_rules(schema)), wrong)
