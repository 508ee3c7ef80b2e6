"""Items of requests in the form that is stored, listed and told to models."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.responses.input.input_items import ItemRules, read_input, read_items
from fastovms.api.wire.dialect import OPENAI, OVMS, Dialect
from fastovms.errors import InvalidField

RULES = ItemRules(OPENAI, lambda prefix: f"{prefix}_new")


@pytest.mark.parametrize(
    ("given", "kind", "id"),
    [
        ({"role": "user", "content": "a"}, "message", "msg_new"),
        ({"type": "message", "role": "user", "content": "a", "id": "own"}, "message", "own"),
        ({"type": "reasoning", "summary": []}, "reasoning", "rs_new"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
         "function_call", "fc_new"),
        ({"type": "function_call_output", "call_id": "c", "output": "x"},
         "function_call_output", "fco_new"),
    ],
)  # fmt: skip
def test_items_without_ids_get_one(given: dict[str, Any], kind: str, id: str) -> None:
    [item] = read_items([given], "input", RULES)
    assert (item["type"], item["id"]) == (kind, id)
    assert read_items([item], "input", RULES) == [item], "what is told is read again"


@pytest.mark.parametrize(
    ("given", "contents"), [(None, []), ("", [""]), ("a", ["a"]), ([], [])], ids=repr
)
def test_a_text_is_what_the_user_says(given: Any, contents: list[str]) -> None:
    items = read_input(given, RULES)
    assert [item["content"][0]["text"] for item in items] == contents


@pytest.mark.parametrize("given", ["", []])
def test_nothing_is_refused_by_one_dialect(given: Any) -> None:
    with pytest.raises(InvalidField, match="input must not be empty"):
        read_input(given, RULES._replace(dialect=OVMS))


@pytest.mark.parametrize("kind", ["unknown", "compaction_trigger", "mcp_list_tools"])
@pytest.mark.parametrize("dialect", [OPENAI, OVMS])
def test_unsupported_types_are_refused_by_name(kind: str, dialect: Dialect) -> None:
    with pytest.raises(InvalidField, match=kind) as caught:
        read_items([{"type": kind, "id": "a"}], "items", RULES._replace(dialect=dialect))
    assert caught.value.param == "items[0].type"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"role": "nobody", "content": "a"}, "items[0].role"),
        ({"type": 5}, "items[0].type"),
        ({"role": "user", "content": [{"type": "input_text", "text": 5}]},
         "items[0].content[0].text"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "items[0].name"),
        ({"role": "user", "content": "a", "id": "a b"}, "items[0].id"),
        ({"type": "shell_call_output", "output": []}, "items[0].call_id"),
        ({"type": "mcp_call", "arguments": "{}"}, "items[0].name"),
        ({"type": "additional_tools", "tools": 5}, "items[0].tools"),
        ({"type": "additional_tools", "role": "user", "tools": []}, "items[0].role"),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "items[0].tools[0].name"),
        ({"type": "tool_search_output", "call_id": "c"}, "items[0].tools"),
        ({"type": "configuration_update", "reasoning": 5}, "items[0].reasoning"),
        ({"type": "configuration_update", "reasoning": {"effort": "much"}},
         "items[0].reasoning.effort"),
        ({"type": "configuration_update", "text": {"format": "text"}}, "items[0].text.format"),
    ],
)  # fmt: skip
def test_faults_are_named_by_their_place(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_items([given], "items", RULES)
    assert caught.value.param == param
