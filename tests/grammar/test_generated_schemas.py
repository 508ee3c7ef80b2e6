"""Tests of the schemas that zod 4.6, pydantic 2.14 and openai-python write for one field of each
type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastovms.errors import InvalidField
from fastovms.grammar.json_schema import enforceable_schema
from fastovms.text.output import call_grammar
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.api.chat_models import call_text, tool
from tests.api.test_constraint import constraint_of
from tests.vocabularies import vocabulary

SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = json.loads(
    Path(__file__).with_name("generated_schemas.json").read_text()
)
UNENFORCED = {f"{kind} {name}" for kind in ("pydantic", "openai") for name in ("set", "frozenset")}
"""Grammars cannot enforce that items are unique."""

FORMATS = ("qwen3coder", "glm45", "minimax_m2", "step3", "lfm2", "mistral")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_generated_schema_is_enforced_for_answers_and_tools(name: str) -> None:
    schema, value = SCHEMAS[name]
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for strict in (True, False):
        form = {"name": "x", "strict": strict, "schema": schema}
        wanted = constraint_of({"response_format": {"type": "json_schema", "json_schema": form}})
        assert wanted is not None
        assert vocabulary().accepts(wanted.grammar, text) is True
        assert bool(wanted.warnings) == (name in UNENFORCED)
    fields = {"tools": [tool(parameters=schema)], "tool_choice": "required"}
    wanted = constraint_of(fields)
    assert wanted is not None
    assert vocabulary().accepts(wanted.grammar, call_text(arguments=text)) is True
    assert bool(wanted.warnings) == (name in UNENFORCED)
    strict_tool = {"tools": [tool(parameters=schema, strict=True)]}
    if name in UNENFORCED:
        with pytest.raises(InvalidField, match=r'^tools\[0\]\..*uniqueItems .*"get_weather"'):
            constraint_of(strict_tool)
        return
    wanted = constraint_of(strict_tool)
    assert wanted is not None
    assert not wanted.warnings
    assert vocabulary().accepts(wanted.grammar, call_text(arguments=text)) is True


@pytest.mark.slow
@pytest.mark.parametrize("format_name", FORMATS)
def test_generated_schema_is_enforced_in_every_format_of_calls(format_name: str) -> None:
    tool_format = TOOL_FORMATS[format_name]
    refused = []
    for name, (schema, value) in SCHEMAS.items():
        found = Tool("f", enforceable_schema(schema).schema, is_relaxed=True)
        grammar = call_grammar(tool_format, None, CallChoice([found], required=True), prompt="")
        if not vocabulary().accepts(grammar, written_call(tool_format, "f", value)):
            refused.append(name)
    assert refused == []
