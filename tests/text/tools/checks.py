"""What holds for every format of calls."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fastovms.text.output import call_grammar, output_parser
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece
from fastovms.text.tools import CallChoice, Tool, ToolFormat
from tests.text.parsing import parse, parse_all, without_positions
from tests.vocabularies import vocabulary


def call(index: int, name: str, arguments: str, *, complete: bool = True) -> list[Piece]:
    told: list[Piece] = [CallArguments(index, arguments)] if arguments else []
    return [CallBegin(index, name), *told, CallEnd(index, complete)]


def cuts(text: str) -> Iterator[list[str]]:
    """Whole, in two parts at every position, into characters, and at random."""
    yield [text]
    for position in range(1, len(text)):
        yield [text[:position], text[position:]]
    yield list(text)
    rng = random.Random(text)
    for _ in range(10):
        positions = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(9))})
        yield [text[a:b] for a, b in itertools.pairwise(positions)]


def samples(*tables: tuple[Any, ...]) -> list[Any]:
    """Returns parameters for tests of samples, with ids: formats, texts and pieces.

    Args:
        tables: a format or several of them, their samples as pairs or as pairs by name, and marks.
    """
    found = []
    for forms, table, *marks in tables:
        named = (
            table.items() if isinstance(table, dict) else [(text, (text, p)) for text, p in table]
        )
        for form in forms if isinstance(forms, list | tuple) else [forms]:
            for name, sample in named:
                found.append(pytest.param(form, *sample, id=f"{form.name}: {name}", marks=marks))
    return found


def check_sample(
    tool_format: ToolFormat,
    text: str,
    pieces: Sequence[Piece],
    tools: Sequence[Tool],
    *,
    reasoning: ReasoningFormat | None = None,
    prompt: str = "",
) -> None:
    """The text has these pieces however it is cut, and whole calls have objects as arguments."""
    ends = set()
    for parts in cuts(text):
        parser = output_parser(tool_format, reasoning, prompt=prompt, tools=tools)
        found = parse_all(parser, parts)
        ends.add(tuple(piece.position for piece in found if isinstance(piece, CallEnd)))
        assert without_positions(found) == list(pieces), parts
    assert len(ends) == 1, "calls end at one place, however the text is cut"
    for told, end in itertools.pairwise(pieces):
        if isinstance(told, CallArguments) and isinstance(end, CallEnd) and end.complete:
            assert isinstance(json.loads(told.text), dict)


def calls_in(tool_format: ToolFormat, text: str, tools: Sequence[Tool]) -> list[tuple[str, object]]:
    """The calls of a text that is nothing else."""
    pieces = parse(output_parser(tool_format, None, prompt="", tools=tools), [text])
    assert not any(isinstance(piece, Content) for piece in pieces), (text, pieces)
    begins = [piece.name for piece in pieces if isinstance(piece, CallBegin)]
    arguments = [read_once(piece.text) for piece in pieces if isinstance(piece, CallArguments)]
    assert all(piece.complete for piece in pieces if isinstance(piece, CallEnd)), (text, pieces)
    return list(zip(begins, arguments, strict=True))


def read_once(text: str) -> object:
    """The value of a JSON text in which no object has a name twice."""

    def once(members: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(members)
        assert len(found) == len(members), text
        return found

    return json.loads(text, object_pairs_hook=once)


def check_walks(
    tool_format: ToolFormat, tools: Sequence[Tool], hints: Sequence[str], seeds: int = 8
) -> None:
    """Whatever a grammar for required calls lets through is calls that follow the schemas."""
    schemas = {tool.name: tool.parameters for tool in tools}
    for specials in ((), tool_format.tags):
        for parallel in (False, True):
            choice = CallChoice(tools, required=True, parallel=parallel)
            grammar = call_grammar(tool_format, None, choice, prompt="")
            for seed in range(seeds):
                text = vocabulary(*specials).walk(grammar, hints, seed)
                found = calls_in(tool_format, text, tools)
                assert found if parallel else len(found) == 1
                for name, arguments in found:
                    assert follows(arguments, schemas[name]), (text, arguments)


def follows(value: object, schema: object) -> bool:
    """Whether a value follows a schema, of the few keywords that the tests use."""
    assert isinstance(schema, dict)
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        return False
    if isinstance(value, list):
        return all(follows(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        is_closed = "properties" in schema or not schema
        return (
            set(schema.get("required", ())) <= set(value)
            and not (is_closed and set(value) - set(properties))
            and all(follows(item, properties.get(key, {})) for key, item in value.items())
        )
    return True


SHOP = [
    Tool(
        "search",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "exact": {"type": "boolean"},
            },
            "required": ["query"],
        },
    ),
    Tool(
        "order",
        {
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
                        "required": ["sku"],
                    },
                },
                "priority": {"type": "string", "enum": ["low", "high"]},
                "note": {"type": "string", "maxLength": 8},
            },
            "required": ["items", "priority"],
        },
    ),
    Tool("now"),
]
"""Functions with strings, numbers, nested objects, an enumeration and no parameters at all."""
