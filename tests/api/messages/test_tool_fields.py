"""Tools and choices in Anthropic's form."""

from __future__ import annotations

from typing import Any

import pytest

from fastovms.api.messages.tool_fields import read_tools
from fastovms.errors import InvalidField

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def tool(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool", "input_schema": SCHEMA, **members}


def test_what_the_template_is_shown() -> None:
    cached = tool(type="custom", cache_control={"type": "ephemeral"}, input_examples=[{}])
    use = read_tools([cached, SEARCH], None)
    function = {"name": "f", "description": "A tool", "parameters": SCHEMA}
    assert use.shown == [{"type": "function", "function": function}]
    assert use.skipped == ["tools[1] of type web_search_20250305"]


@pytest.mark.parametrize(
    ("choice", "names", "is_required", "is_named", "is_parallel"),
    [
        (None, ["f", "g"], False, False, True),
        ({"type": "auto"}, ["f", "g"], False, False, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["f", "g"], False, False, False),
        ({"type": "any"}, ["f", "g"], True, False, True),
        ({"type": "any", "disable_parallel_tool_use": True}, ["f", "g"], True, False, False),
        ({"type": "tool", "name": "g"}, ["g"], True, True, False),
        ({"type": "none"}, [], False, False, True),
    ],
)
def test_choices(
    choice: Any, names: list[str], is_required: bool, is_named: bool, is_parallel: bool
) -> None:
    use = read_tools([tool(), tool("g")], choice)
    assert [each.name for each in use.tools] == names
    assert use.is_required is is_required
    assert use.is_named is is_named
    assert use.is_parallel is is_parallel


def test_strict_tools() -> None:
    assert read_tools([tool(strict=True)], None).is_strict


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}])
def test_no_tools(choice: Any) -> None:
    assert read_tools(None, choice).tools == []


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([tool(type=5)], None, "tools[0].type"),
        ([tool(), {"name": "g"}], None, "tools[1].input_schema"),
        ([tool(input_schema={"type": "array"})], None, "tools[0].input_schema.type"),
        ([tool(name="")], None, "tools[0].name"),
        ([tool(description=5)], None, "tools[0].description"),
        ([tool(strict=1)], None, "tools[0].strict"),
        ([tool()] * 1025, None, "tools"),
        ([tool()], {}, "tool_choice.type"),
        ([tool()], {"type": "required"}, "tool_choice.type"),
        ([tool()], {"type": "tool"}, "tool_choice.name"),
        ([tool()], {"type": "tool", "name": "h"}, "tool_choice"),
        ([SEARCH], {"type": "tool", "name": "web_search"}, "tool_choice"),
        ([], {"type": "any"}, "tool_choice"),
        (
            [tool()],
            {"type": "auto", "disable_parallel_tool_use": 1},
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_faults(tools: list[Any], choice: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_tools(tools, choice)
    assert caught.value.param == param
    assert param in caught.value.message
