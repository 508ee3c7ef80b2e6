"""Choices of tools, in the forms of chats and of responses."""

from __future__ import annotations

import re

import pytest

from fastovms.api.conversation.chat_tools import read_functions, read_tools
from fastovms.api.wire.dialect import OPENAI, OVMS
from fastovms.errors import InvalidField
from tests.api.chat_models import custom, tool

NAMESPACE = {
    "type": "namespace",
    "name": "sums",
    "description": "All about sums.",
    "tools": [
        {"type": "function", "name": "add", "description": "Adds."},
        {"type": "custom", "name": "explain"},
    ],
}
TOOLS = [tool("look"), custom("write"), NAMESPACE]
ALL = ["look", "write", "sums__add", "sums__explain"]


def named(name: str, kind: str = "function", **members: object) -> dict:
    return {"type": kind, "name": name, **members}


def allowed(*tools: dict, mode: str = "auto") -> dict:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


@pytest.mark.parametrize(
    ("choice", "names", "is_required"),
    [
        (None, ALL, False),
        ("auto", ALL, False),
        ("none", [], False),
        ("required", ALL, True),
        (named("look"), ["look"], True),
        (named("write", "custom"), ["write"], True),
        ({"type": "custom", "custom": {"name": "write"}}, ["write"], True),
        (named("add", namespace="sums"), ["sums__add"], True),
        (named("add"), ["sums__add"], True),
        (named("sums__add"), ["sums__add"], True),
        (named("explain", "custom"), ["sums__explain"], True),
        (allowed(named("look"), named("write", "custom")), ["look", "write"], False),
        (allowed(named("add"), {"type": "web_search"}, mode="required"), ["sums__add"], True),
    ],
)
def test_choices(choice, names, is_required):
    use = read_tools(TOOLS, choice, None, OPENAI, flat=True, skips_others=True)
    assert [tool.name for tool in use.tools] == names
    assert [tool["function"]["name"] for tool in use.shown] == names
    assert sorted(use.targets) == sorted(names)
    assert use.is_required == is_required
    assert use.custom == {"write", "sums__explain"} & {*names}


@pytest.mark.parametrize(
    "choice",
    [
        named("other"),
        named("write"),
        named("look", "custom"),
        named("add", namespace="other"),
        allowed(named("other")),
    ],
)
def test_choices_of_nothing(choice):
    with pytest.raises(InvalidField, match="not among the tools"):
        read_tools(TOOLS, choice, None, OPENAI, flat=True)
    assert read_tools(TOOLS, choice, None, OVMS, flat=True).tools == []


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (named("add"), 'tool_choice names "add", which more than one namespace has'),
        (allowed(named("add")), 'tool_choice.tools[0] names "add", which more than one namespace'),
        (named("add", namespace=5), "tool_choice.namespace must be a string, not 5"),
        (named("look", namespace={}), "tool_choice.namespace must be a string, not {}"),
        (named(""), 'tool_choice.name must be a string that is not empty, not ""'),
        (
            allowed({"type": "web_search"}, mode="required"),
            "tool_choice.tools lists no tool that the model can call, though one is required",
        ),
    ],
)
def test_choices_at_fault(choice, message):
    tools = [*TOOLS, {**NAMESPACE, "name": "more"}]
    with pytest.raises(InvalidField, match=re.escape(message)):
        read_tools(tools, choice, None, OPENAI, flat=True, skips_others=True)


def test_what_is_said_of_a_namespace_is_said_once():
    use = read_tools(TOOLS, None, None, OPENAI, flat=True)
    said = [tool["function"].get("description", "") for tool in use.shown]
    assert said[2] == "All about sums.\n\nAdds."
    assert "All about sums" not in said[3]


def test_tools_of_other_types_are_named():
    use = read_tools([{"type": "tool_search"}, NAMESPACE], None, None, OPENAI, flat=True,
                     skips_others=True)  # fmt: skip
    assert use.skipped == ["tools[0] of type tool_search"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**NAMESPACE, "name": ""}], "tools[0].name"),
        ([{**NAMESPACE, "tools": {}}], "tools[0].tools"),
        ([{**NAMESPACE, "description": 5}], "tools[0].description"),
        ([{**NAMESPACE, "tools": [5]}], "tools[0].tools[0]"),
        ([{**NAMESPACE, "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{**NAMESPACE, "tools": [NAMESPACE]}], "tools[0].tools[0].type"),
        ([NAMESPACE, tool("sums__add")], "tools[1].function"),
        ([tool("x"), custom("x")], "tools[1].custom"),
        ([{**NAMESPACE, "tools": [named(f"f{i}") for i in range(1000)]},
          *(tool(f"t{i}") for i in range(25))], "tools"),
    ],
)  # fmt: skip
def test_faults_of_namespaces(tools, param):
    with pytest.raises(InvalidField) as raised:
        read_tools(tools, None, None, OPENAI, flat=True)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("choice", "names", "is_required"),
    [
        (None, ["f", "g"], False),
        ("auto", ["f", "g"], False),
        ("none", [], False),
        ({"name": "g"}, ["g"], True),
    ],
)
def test_functions(choice, names, is_required):
    use = read_functions([{"name": "f"}, {"name": "g"}], choice, OPENAI)
    assert [tool.name for tool in use.tools] == names
    assert (use.is_required, use.is_named) == (is_required, is_required)
    assert use.is_legacy
    assert not use.is_parallel
