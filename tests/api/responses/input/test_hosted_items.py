"""Every type of item that OpenAI's client can send is told to the model, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseInputItemParam

from fastovms.api.responses.input.hosted_items import CONFIGURATION, REFUSED
from fastovms.api.responses.input.input_items import ItemRules, read_items
from fastovms.api.responses.input.items_to_messages import to_messages
from fastovms.api.responses.transcript import transcript
from fastovms.api.wire.dialect import OPENAI
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import GivenImages

RULES = ItemRules(OPENAI, lambda prefix: f"{prefix}_new")
NOTE = "[image: this model cannot read it]"
TOOL = {"type": "function", "name": "f", "parameters": {}}


def call(name: str, arguments: object, result: str | None = None, id: str = "c") -> list[Any]:
    """The messages of a call, and of what it has answered."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"type": "function", "id": id, "function": function}
    told: list[Any] = [{"role": "assistant", "content": "", "tool_calls": [made]}]
    return told if result is None else [*told, *answer(result, id)]


def answer(text: str, id: str = "c") -> list[Any]:
    return [{"role": "tool", "content": text, "tool_call_id": id}]


HOSTED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "apply_patch_call": (
        {"call_id": "c", "operation": {"path": "a"}},
        call("apply_patch", {"operation": {"path": "a"}}),
    ),
    "apply_patch_call_output": (
        {"call_id": "c", "status": "failed", "output": "no"},
        answer('{"status": "failed", "output": "no"}'),
    ),
    "code_interpreter_call": (
        {"id": "c", "code": "1", "outputs": [{"type": "logs", "logs": "2"}]},
        call("code_interpreter", {"code": "1"}, '[{"type": "logs", "logs": "2"}]'),
    ),
    "computer_call": (
        {"call_id": "c", "action": {"type": "wait"}},
        call("computer", {"action": {"type": "wait"}}),
    ),
    "computer_call_output": (
        {"call_id": "c", "output": {"type": "computer_screenshot", "image_url": "data:,"}},
        answer(NOTE),
    ),
    "file_search_call": (
        {"id": "c", "queries": ["a"], "results": None},
        call("file_search", {"queries": ["a"]}, "{}"),
    ),
    "image_generation_call": (
        {"id": "c", "result": "AAAA", "revised_prompt": "a cat"},
        call("image_generation", {"revised_prompt": "a cat"}, NOTE),
    ),
    "local_shell_call": (
        {"call_id": "c", "action": {"command": ["ls"]}},
        call("local_shell", {"action": {"command": ["ls"]}}),
    ),
    "local_shell_call_output": ({"id": "c", "output": "a"}, answer("a")),
    "mcp_call": (
        {"id": "c", "name": "m", "arguments": "{}", "output": "x"}, call("m", {}, "x")
    ),
    "program": ({"call_id": "c", "id": "p", "code": "1"}, call("program", {"code": "1"})),
    "program_output": ({"call_id": "c", "result": "1"}, answer("1")),
    "shell_call": (
        {"call_id": "c", "action": {"commands": ["ls"]}},
        call("shell", {"action": {"commands": ["ls"]}}),
    ),
    "shell_call_output": (
        {"call_id": "c", "output": [{"stdout": "é"}]}, answer('[{"stdout": "é"}]')
    ),
    "tool_search_call": (
        {"call_id": "c", "arguments": {"q": "a"}}, call("tool_search", {"q": "a"})
    ),
    "tool_search_output": (
        {"call_id": "c", "tools": [TOOL, {"type": "namespace", "name": "n", "description": "",
                                          "tools": [TOOL]}, {"type": "mcp"}]},
        answer("Tools found: f, n__f"),
    ),
    "web_search_call": (
        {"id": "c", "status": "completed", "action": {"type": "search", "query": "a"}},
        call("web_search", {"action": {"type": "search", "query": "a"}}, "completed"),
    ),
    "additional_tools": ({"role": "developer", "tools": [TOOL]}, []),
    "configuration_update": ({"reasoning": {"effort": "low"}}, []),
}  # fmt: skip


def types_of_the_client() -> Iterator[str]:
    for member in get_args(ResponseInputItemParam):
        hint = get_type_hints(member)["type"]
        yield from (kind for part in (hint, *get_args(hint)) for kind in get_args(part))


def test_the_client_has_no_other_types() -> None:
    known = {
        *HOSTED, *REFUSED, "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "reasoning", "compaction", "item_reference",
    }  # fmt: skip
    assert {kind for kind in types_of_the_client() if isinstance(kind, str)} <= known


@pytest.mark.parametrize("kind", HOSTED)
def test_items_are_told_as_functions(kind: str) -> None:
    members, messages = HOSTED[kind]
    read = read_items([{"type": kind, **members}], "input", RULES)
    assert read_items(read, "input", RULES) == read, "what is kept is read again"
    assert read[0].items() >= members.items()
    assert to_messages(read).messages == messages
    assert bool(transcript(read, 999, len)) == (kind not in CONFIGURATION)


def test_images_of_tools_are_shown_to_models_that_take_some() -> None:
    kinds = ("computer_call_output", "image_generation_call")
    given = [{"type": kind, **HOSTED[kind][0]} for kind in kinds]
    images = GivenImages(2)
    messages = to_messages(read_items(given, "input", RULES), images=images).messages
    assert [messages[0]["content"], messages[2]["content"]] == [image_tag(0), image_tag(1)]
    assert [image.url for image in images.sources] == ["data:,", "data:image/png;base64,AAAA"]


@pytest.mark.parametrize("kind", REFUSED)
def test_items_that_ask_for_what_there_is_not_are_refused(kind: str) -> None:
    with pytest.raises(InvalidField, match=f'items\\[0\\].type "{kind}" is not supported: .* '):
        read_items([{"type": kind}], "items", RULES)
