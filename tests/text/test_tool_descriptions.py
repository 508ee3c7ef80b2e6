"""Tests of `fastovms/text/tool_descriptions.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fastovms.text.template_messages import AS_TEXT, TemplateForm, adapt
from fastovms.text.tool_descriptions import describe_tools, written_call
from fastovms.text.tools import TOOL_FORMATS, CallChoice, Tool
from tests.text.tools.checks import calls_in

# Tools, calls and results in the words of messages.


ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object"}, "strict": 1},
}
USER = {"role": "user", "content": "1 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "noon"}]},
]


def told(
    *messages: dict[str, Any], name: str = "json", system: bool = True, **choice: bool
) -> list[dict[str, Any]]:
    functions = [ADD] if choice.pop("has_tools", True) else []
    return describe_tools(
        messages,
        functions,
        TOOL_FORMATS[name],
        CallChoice([Tool("add")], **choice),
        has_system_turn=system,
    )


def test_tools_are_listed_in_the_system_message() -> None:
    first, second = told(USER)
    assert first["role"] == "system"
    assert '{"name": "add", "parameters": {"type": "object"}}\n' in first["content"]
    assert (
        '{"name": "name_of_function", "arguments": {"name_of_argument": "value"}}'
        in first["content"]
    )
    assert second == USER
    first, second = told(SYSTEM, USER)
    assert first["content"].startswith("Be brief.\n\nYou can call")
    assert second == USER


def test_tools_are_listed_in_the_user_message_without_system_role() -> None:
    [first] = told(USER, system=False)
    assert first["role"] == "user"
    assert first["content"].startswith("You can call")
    assert first["content"].endswith("\n\n1 + 2?")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, "in your own words"),
        ({"required": True}, "Answer with a call now"),
        ({"parallel": False}, "one call at most"),
        ({"parallel": True}, "To call several"),
    ],
)
def test_tools_in_the_prompt_limit_parallel_calls_by_choice(
    choice: dict[str, bool], words: str
) -> None:
    assert words in told(USER, **choice)[0]["content"]


def test_calls_and_results_become_alternating_messages() -> None:
    form = TemplateForm(calls=AS_TEXT, results=False)
    write = partial(written_call, TOOL_FORMATS["hermes3"])
    messages, warnings = adapt([USER, CALLED, *RESULTS, USER], form, (), write)
    assert messages == [
        USER,
        {
            "role": "assistant",
            "content": '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        },
        {
            "role": "user",
            "content": "Result of the call of add:\n3\n\nResult of the call of now:\nnoon"
            "\n\n1 + 2?",
        },
    ]
    assert len(warnings) == 2


def test_messages_without_tools_are_unchanged() -> None:
    assert told(SYSTEM, USER, has_tools=False) == [SYSTEM, USER]


# Calls written in every format are read back as they were.


ARGUMENTS: dict[str, Any] = {
    "text": 'a "b" \\ü', "lines": "x\ny", "number": 2.5, "flag": True, "none": None,
    "list": [1, {"a": []}], "object": {"b": "c"},
}  # fmt: skip
PROPERTIES = {key: {} for key in ARGUMENTS} | {
    "text": {"type": "string"},
    "lines": {"type": "string"},
}
TOOLS = [Tool("f", {"properties": PROPERTIES}), Tool("g")]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_written_call_is_read_back_in_every_format(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    text = written_call(tool_format, "f", ARGUMENTS)
    assert calls_in(tool_format, text, TOOLS) == [("f", ARGUMENTS)], text
    assert calls_in(tool_format, written_call(tool_format, "g", {}), TOOLS) == [("g", {})]
