"""Arguments whose names a schema does not list, in every format of calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.text.output import call_grammar, output_parser
from fastovms.text.scanning import CallArguments
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.vocabularies import vocabulary

OPEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no schema": ({"type": "object"}, {"city": "Paris", "days": 3}),
    "any": ({"type": "object", "additionalProperties": True}, {"city": "Paris", "deep": [1]}),
    "typed": ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}),
    "beside a declared one": (
        {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
            "additionalProperties": {"type": "string"},
        },
        {"path": "a b", "path2": "c"},
    ),
    "by a pattern": (
        {
            "type": "object",
            "patternProperties": {"^x_": {"type": "string"}},
            "additionalProperties": False,
        },
        {"x_a": "b"},
    ),
}
FORMATS = [form for name, form in TOOL_FORMATS.items() if name != "command_r7b"]
"""All but the one whose calls have ids, which `written_call` leaves empty."""

OF_TOKENS = ("minimax_m3",)
"""Formats whose tags are always single tokens."""


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(("schema", "arguments"), OPEN.values(), ids=OPEN)
def test_arguments_that_the_schema_does_not_list_are_accepted(
    tool_format, schema, arguments
) -> None:
    tool = Tool("f", schema, is_relaxed=True)
    text = written_call(tool_format, "f", arguments)
    grammar = call_grammar(tool_format, None, CallChoice([tool], required=True), prompt="")
    tags = tool_format.tags if tool_format.name in OF_TOKENS else ()
    assert vocabulary(*tags).accepts(grammar, text) is True
    parser = output_parser(tool_format, None, prompt="", tools=[tool])
    pieces = [*parser.push(text), *parser.finish(is_cut=False)]
    found = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    assert json.loads(found) == arguments
