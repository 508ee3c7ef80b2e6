"""Tests of `fastovms/text/parameters.py`."""

from __future__ import annotations

import json

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar_tree import ANY_TEXT, TextBefore
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output import call_grammar
from fastovms.text.parameters import (
    ANY_TYPE,
    Parameter,
    find_parameters,
    parameters_of,
    text_body,
)
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from fastovms.text.values import value_of
from tests.vocabularies import vocabulary

# String arguments without quotes: what their schemas let through.


END = "</p>"


def parameter(schema: dict[str, object]) -> Parameter:
    return find_parameters({"properties": {"a": schema}})["a"]


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["string", "null"]}])
def test_schema_without_constraints_accepts_any_text(schema: dict[str, object]) -> None:
    assert text_body(parameter(schema), END) == ANY_TEXT


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"minLength": 2, "maxLength": 3}, ["ab", "a\nb"], ["a", "abcd"]),
        ({"minLength": 2}, ["ab", "abcd"], ["a", ""]),
        ({"pattern": "b"}, ["abc", "b"], ["ac"]),
        ({"pattern": "^a|b$"}, ["a", "b"], ["c"]),
        ({"pattern": r"^a\$"}, ["a$", "a$b"], ["a"]),
        ({"pattern": "^[ab]+$", "maxLength": 2}, ["ab"], ["abc", "aba"]),
        ({"maxLength": 20}, ["<p>"], ["x</p>y"]),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "z$"}]}, ["az", "abz"], ["ab", "bz"]),
        ({"anyOf": [{"pattern": "^a$"}, {"const": "b.c"}]}, ["a", "b.c"], ["b", "bxc"]),
        ({"contentEncoding": "base64", "maxLength": 2}, ["ab"], ["abc"]),
    ],
)
def test_text_of_a_string_follows_its_bounds_and_patterns(
    schema: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    body = text_body(parameter({"type": "string", **schema}), END)
    grammar = Grammar(GrammarKind.CALLS, "", "tools", TextBefore(END, body))
    accepts = vocabulary().accepts
    assert {text: accepts(grammar, text + END) for text in right} == dict.fromkeys(right, True)
    assert not any(accepts(grammar, text + END) for text in wrong)


def test_string_schema_without_a_regular_expression_is_refused() -> None:
    schema = {"type": "string", "anyOf": [{"pattern": "a", "minLength": 2}, {"const": "b"}]}
    with pytest.raises(InvalidField, match="'anyOf' of the string parameter a") as caught:
        text_body(parameter(schema), END)
    assert caught.value.param == "tools"
    assert text_body(parameter(schema)._replace(is_relaxed=True), END) == ANY_TEXT


# Arguments that are written one by one: what their texts stand for, and which texts may be.


DEFINITIONS = {
    "Kind": {"enum": ["a", "b"]},
    "Loop": {"$ref": "#/$defs/Loop"},
    "None": {"type": "null"},
}


def types(schema: object) -> set[str]:
    root = {"properties": {"x": schema}, "$defs": DEFINITIONS}
    return set(find_parameters(root)["x"].types)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True, 1.5, [], {}]}, set(ANY_TYPE)),
        ({"const": "a"}, {"string"}),
        ({"$ref": "#/$defs/Kind"}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Kind"}], "default": "a"}, {"string"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/None"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "integer"}, {"type": "array"}]}, {"integer", "array"}),
        ({"type": "string", "enum": ["a", 1]}, {"string"}),
        ({}, set(ANY_TYPE)),
        (True, set(ANY_TYPE)),
        ({"$ref": "#/$defs/Loop"}, set(ANY_TYPE)),
        ({"$ref": "#/nowhere"}, set(ANY_TYPE)),
        ({"$ref": "https://example.com"}, set(ANY_TYPE)),
    ],
)
def test_schema_types_are_found_through_references_and_unions(
    schema: object, expected: set[str]
) -> None:
    assert types(schema) == expected


LOOPS = {"anyOf": [{"$ref": "#/$defs/a"}] * 3 + [{"type": "string"}]}
WAYS = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 3} for i in range(14)}


@pytest.mark.parametrize(
    ("definitions", "schema", "expected"),
    [
        ({"a": LOOPS}, {"$ref": "#/$defs/a"}, {"string"}),
        ({"a": {"allOf": [LOOPS, {"$ref": "#/$defs/a"}]}}, {"$ref": "#/$defs/a"}, {"string"}),
        ({"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}, {"$ref": "#/$defs/a"}, set(ANY_TYPE)),
        ({**WAYS, "n14": {"type": "null"}}, {"$ref": "#/$defs/n0"}, {"null"}),
        ({}, {"enum": [0] * 20_000}, {"integer"}),
    ],
)
def test_schema_with_loops_or_many_ways_is_read_once(definitions, schema, expected):
    root = {"properties": {"x": schema}, "$defs": definitions}
    assert find_parameters(root)["x"].types == expected


def test_reading_types_of_many_references_is_bounded() -> None:
    """Every property leads through all definitions."""
    names = [f"n{i}" for i in range(500)]
    every = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    root = {
        "properties": {str(i): {**every, "title": str(i)} for i in range(500)},
        "$defs": {name: {"type": "null"} for name in names},
    }
    found = find_parameters(root)
    assert found["0"].types == {"null"}
    assert found["499"].types == ANY_TYPE


ANY = {}
TEXT = {"type": "string"}
CODE = {"type": ["integer", "string"]}
MAYBE_TEXT = {"anyOf": [TEXT, {"type": "null"}]}
NUMBER, FLAG = {"type": "number"}, {"type": "boolean"}
DIGITS = {"enum": ["1", 2, "TRUE", None]}
EITHER = {"oneOf": [{"const": "1"}, {"const": 1}]}
NUMBERS = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (ANY, {"5": 5, "-0.5e3": -500.0, "True": True, "null": None, "None": None, '"a"': "a"}),
        (ANY, {" [1] ": [1], '{"a": 1}': {"a": 1}, "{'a': 1}": {"a": 1}, "1.10": 1.1}),
        (TEXT, {"5": "5", "null": "null", " 007 ": " 007 "}),
        (CODE, {"7": 7, "-7": -7, '"a"': "a", "9" * 30: int("9" * 30)}),
        (CODE, {text: text for text in ("1.5", "1.10", "1e5", "true", "None", "[1]")}),
        (MAYBE_TEXT, {"5": "5", "None": None, "null": None, "NULL": "NULL", "none": "none"}),
        ({**TEXT, "nullable": True}, {"null": None, "5": "5"}),
        ({"$ref": "#/$defs/Code"}, {"007": "007", "7": 7}),
        ({"type": "any"}, {"007": "007", "7": 7}),
        (NUMBER, {" 7 ": 7, "007": 7, "+5": 5, "1_000": 1000, ".5": 0.5, "5.": 5.0, "-0": 0}),
        (NUMBER, {text: text for text in ("NaN", "Infinity", "0x10", "1,000", "oops", "\u0967")}),
        (FLAG, {" TRUE ": True, "False": False, "true": True, "FALSE": False, "yes": "yes"}),
        ({"type": ["boolean", "null"]}, {"NULL": None, "none": None, "TRUE": True}),
        ({"type": ["boolean", "string"]}, {"TRUE": True, "yes": "yes", "1": "1"}),
        (DIGITS, {"1": "1", "2": 2, "null": None, "TRUE": "TRUE"}),
        (EITHER, {"1": 1, '"1"': "1"}),
        (NUMBERS, {"[1_000, +2, 03]": [1000, 2, 3], "(1, 2)": [1, 2], "[007": "[007"}),
        ({"type": "object"}, {"{'zip': 007, 'tel': +1555, 'n': 5}":
            {"zip": "007", "tel": "+1555", "n": 5}}),
        ({"type": "integer"}, {"9" * 5000: "9" * 5000}),
        ({"type": "array"}, {"[" * 5000: "[" * 5000}),
    ],
)  # fmt: skip
def test_value_has_a_type_that_its_schema_allows(
    schema: dict[str, object], values: dict[str, object]
) -> None:
    root = {"properties": {"a": schema}, "$defs": {"Code": CODE}}
    found = find_parameters(root)["a"]
    for text, value in values.items():
        told = value_of(text, found)
        if text == "9" * 5000:
            assert told == text  # more digits than Python reads
        else:
            read = json.loads(told)
            assert (type(read), read) == (type(value), value), text


NO_NUMBERS = (
    "007", "+15551234567", "1_000", ".5", "5.", "0x10", "NaN", "Infinity", "-Infinity", "--1",
    " 7 ", "7 ", "1e999", "2024-01-05", "10:30", "1,000", "1 000", "-007", "1.2.3", "555-1234",
    "(555)", "(5)", "+1 (555) 123", "TRUE", "none", "NULL", "undefined", "\u0967", "1/2", "", "\n",
)  # fmt: skip


@pytest.mark.parametrize("schema", [ANY, CODE, {"anyOf": [NUMBER, TEXT]}, {"enum": [7, "007"]}])
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_text_that_is_no_json_number_stays_text(text: str, schema: dict[str, object]) -> None:
    assert json.loads(value_of(text, parameter(schema))) == text
    assert json.loads(value_of(text, None)) == text


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("anyOf", [{}]), ("oneOf", [{}]), ("minProperties", 2), ("maxProperties", 0)],
)
def test_keyword_beside_properties_is_refused_for_single_parameters(
    keyword: str, value: object
) -> None:
    schema = {"properties": {"a": {}}, "required": ["a"], keyword: value}
    with pytest.raises(InvalidField, match=f"^'{keyword}' next to the properties of f cannot"):
        parameters_of(schema, "f")
    relaxed = parameters_of(schema, "f", is_relaxed=True)
    assert [(p.name, p.is_relaxed) for p in relaxed.values()] == [("a", True)]


A, B, S = {"type": "integer"}, {"type": "array"}, {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "named", "others"),
    [
        ({}, {}, []),
        ({"properties": {}}, {}, []),
        ({"type": "object"}, {}, [("", {*ANY_TYPE})]),
        ({"type": "object", "additionalProperties": False}, {}, []),
        ({"additionalProperties": S}, {}, [("", {"string"})]),
        ({"additionalProperties": True, "properties": {"a": A}}, {"a": {"integer"}},
         [("", {*ANY_TYPE})]),
        ({"unevaluatedProperties": S, "properties": {"a": A}}, {"a": {"integer"}},
         [("", {"string"})]),
        ({"patternProperties": {"^x": S}, "properties": {"a": A}}, {"a": {"integer"}},
         [("^x", {"string"})]),
        ({"patternProperties": {"^x": S}, "additionalProperties": A}, {},
         [("^x", {"string"}), ("", {"integer"})]),
        ({"allOf": [{"properties": {"a": A}}, {"properties": {"b": B}}]},
         {"a": {"integer"}, "b": {"array"}}, []),
        ({"oneOf": [{"properties": {"a": A}}, {"properties": {"a": S, "b": B}}]},
         {"a": {"integer", "string"}, "b": {"array"}}, []),
        ({"required": ["a"]}, {"a": {*ANY_TYPE}}, [("", {*ANY_TYPE})]),
    ],
)  # fmt: skip
def test_members_that_a_schema_allows_are_found(schema, named, others):
    found = find_parameters(schema)
    assert {name: {*parameter.types} for name, parameter in found.items()} == named
    assert [(pattern, {*parameter.types}) for pattern, parameter in found.others] == others


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_format_makes_a_grammar_of_a_schema_with_loops(name: str) -> None:
    """In a time that does not grow with the number of ways, which are 3 to the 16th."""
    loops = {"anyOf": [*LOOPS["anyOf"], {"type": "integer"}]}
    tool = Tool("f", {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": loops}})
    choice = CallChoice([tool], required=True)
    assert call_grammar(TOOL_FORMATS[name], None, choice, prompt="")


# The arguments of functions, as grammars.


@pytest.mark.parametrize("name", ["qwen3coder", "glm45", "minimax_m3", "gemma4", "lfm2", "hermes3"])
def test_references_to_the_root_are_resolved_in_every_format(name: str) -> None:
    named = {"type": "string", "enum": ["x"]}
    root = {
        "type": "object",
        "properties": {
            "tree": {"type": "array", "items": {"$ref": "#"}},
            "list": {"type": "array", "items": {"$ref": "#/properties/name"}},
            "name": named,
        },
        "required": ["tree"],
        "additionalProperties": False,
    }
    found = TOOL_FORMATS[name]
    choice = CallChoice([Tool("f", root)], required=True, parallel=False)
    grammar = call_grammar(found, None, choice, prompt="")
    inner = {"tree": [], "list": ["x"]}
    for tree, is_right in (([inner], True), ([[]], False), ([{"tree": [], "list": ["y"]}], False)):
        text = written_call(found, "f", {"tree": tree, "list": ["x"]})
        assert (vocabulary().accepts(grammar, text) is True) == is_right, text
