"""Tests of `fastovms/parts/responses/input.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseInputItemParam

from fastovms.api.chat_messages import seal_summary, summary_message
from fastovms.api.dialect import OPENAI, OVMS, Dialect
from fastovms.api.image_parts import RequestImages, UnreadableParts, image_tag
from fastovms.errors import InvalidField
from fastovms.parts.responses.compaction import transcript
from fastovms.parts.responses.input import (
    CONFIGURATION,
    REFUSED,
    TEXT_PARTS,
    ItemRules,
    read_input,
    read_items,
    text_of,
    to_messages,
)

# Every item type of OpenAI's client is passed to the model or refused by name.


RULES = ItemRules(OPENAI, lambda prefix: f"{prefix}_new")
NOTE = "[image: this model cannot read it]"
TOOL = {"type": "function", "name": "f", "parameters": {}}


def call(name: str, arguments: object, result: str | None = None, id: str = "c") -> list[Any]:
    """Returns the messages of a call and of its output."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"type": "function", "id": id, "function": function}
    told: list[Any] = [{"role": "assistant", "content": "", "tool_calls": [made]}]
    return told if result is None else [*told, *answer(result, id)]


def answer(text: str, id: str = "c") -> list[Any]:
    return [{"role": "tool", "content": text, "tool_call_id": id}]


HOSTED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "apply_patch_call": (
        {"call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        call("apply_patch", {"type": "delete_file", "path": "a"}),
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
        {"call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        call("local_shell", {"command": ["ls"]}),
    ),
    "local_shell_call_output": ({"id": "c", "output": "a"}, answer("a")),
    "mcp_call": (
        {"id": "c", "name": "m", "arguments": "{}", "output": "x"}, call("m", {}, "x")
    ),
    "program": ({"call_id": "c", "id": "p", "code": "1"}, call("program", {"code": "1"})),
    "program_output": ({"call_id": "c", "result": "1"}, answer("1")),
    "shell_call": (
        {"call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}},
        call("shell", {"commands": ["ls"]}),
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


def test_every_item_type_of_the_client_is_known() -> None:
    known = {
        *HOSTED, *REFUSED, "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "reasoning", "compaction", "item_reference",
    }  # fmt: skip
    assert {kind for kind in types_of_the_client() if isinstance(kind, str)} <= known


@pytest.mark.parametrize("kind", HOSTED)
def test_hosted_tool_items_become_function_messages(kind: str) -> None:
    members, messages = HOSTED[kind]
    read = read_items([{"type": kind, **members}], "input", RULES)
    assert read_items(read, "input", RULES) == read, "what is kept is read again"
    assert read[0].items() >= members.items()
    assert to_messages(read).messages == messages
    assert bool(transcript(read, 999, len)) == (kind not in CONFIGURATION)


def test_output_of_local_shell_may_name_the_id_of_its_call() -> None:
    asked = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": {"command": []}}
    given = [asked, {"type": "local_shell_call_output", "id": "lsh_1", "output": "a"}]
    messages = to_messages(read_items(given, "input", RULES)).messages
    assert messages == call("local_shell", {"command": []}, "a")


def test_image_outputs_of_tools_become_image_tags() -> None:
    kinds = ("computer_call_output", "image_generation_call")
    given = [{"type": kind, **HOSTED[kind][0]} for kind in kinds]
    images = RequestImages(2)
    messages = to_messages(read_items(given, "input", RULES), images=images).messages
    assert [messages[0]["content"], messages[2]["content"]] == [image_tag(0), image_tag(1)]
    assert [image.url for image in images.sources] == ["data:,", "data:image/png;base64,AAAA"]


@pytest.mark.parametrize("kind", REFUSED)
def test_unavailable_item_type_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(InvalidField, match=f'items\\[0\\].type "{kind}" is not supported: .* '):
        read_items([{"type": kind}], "items", RULES)


# The texts of contents with placeholders for images.


URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "input_image", "image_url": URL}
PARTS = [
    {"type": "input_text", "text": "a"},
    {"type": "refusal", "refusal": "b"},
    IMAGE,
    {"type": "output_text", "text": "c"},
]


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), ([], ""), (PARTS[:2], "a\nb"), (PARTS, f"a\nb{image_tag(0)}c")],
)
def test_content_parts_are_joined_into_text_with_image_tags(content, text):
    images = RequestImages(1)
    assert text_of(content, "input[0].content", images) == text
    assert [image.url for image in images.sources] == [URL] * (content is PARTS)
    with pytest.raises(InvalidField) as caught:
        text_of([*PARTS, IMAGE], "input[0].content", RequestImages(1))
    assert caught.value.param == "input[0].content[4].image_url"


FILE = {"type": "input_file", "filename": "a.pdf", "file_id": "f"}


@pytest.mark.parametrize(
    ("parts", "images", "place"),
    [
        (PARTS, None, "input[2]"),
        ([FILE], None, "input[0]"),
        ([FILE], RequestImages(1), "input[0]"),
        ([{"type": "input_image", "file_id": "f"}], RequestImages(1), "input[0].file_id"),
    ],
)
def test_media_that_the_model_cannot_read_are_refused_or_noted(parts, images, place):
    with pytest.raises(InvalidField) as caught:
        text_of(parts, images=images)
    assert caught.value.param == place
    unseen = UnreadableParts()
    assert "this model cannot read it]" in text_of(parts, images=images, unseen=unseen)
    assert place.removesuffix(".file_id") in unseen.warnings[0]


# Items of requests in the format in which they are stored, listed and rendered.


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


@pytest.mark.parametrize("kind", ["output_text", "refusal", "reasoning_text", "summary_text"])
def test_null_text_of_a_model_is_an_empty_text(kind: str) -> None:
    part = {"type": kind, TEXT_PARTS[kind]: None, "annotations": None, "logprobs": None}
    if kind in ("output_text", "refusal"):
        given = {"type": "message", "role": "assistant", "content": [part], "status": None}
        member = "content"
    else:
        member = "summary" if kind == "summary_text" else "content"
        given = {"type": "reasoning", "summary": [], member: [part], "encrypted_content": None}
    [item] = read_items([given], "input", RULES)
    assert [found[TEXT_PARTS[kind]] for found in item[member]] == [""]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_output_without_call_id_belongs_to_the_only_open_call(kind: str) -> None:
    def call(name: str) -> dict[str, Any]:
        texts = {"arguments": "{}", "input": ""}
        return {"type": kind, "call_id": name, "name": "f", "namespace": None, **texts}

    output = {"type": f"{kind}_output", "output": "x", "call_id": None, "id": None}
    user = {"role": "user", "content": "go on"}
    items = read_items([call("a"), output, user, call("b"), output], "input", RULES)
    assert [item["call_id"] for item in items if "output" in item] == ["a", "b"]
    for given in ([output], [call("a"), call("b"), output], [call("a"), output, output]):
        with pytest.raises(InvalidField, match="call_id"):
            read_items(given, "input", RULES)


@pytest.mark.parametrize(
    ("given", "contents"), [(None, []), ("", [""]), ("a", ["a"]), ([], [])], ids=repr
)
def test_text_input_becomes_a_user_message(given: Any, contents: list[str]) -> None:
    items = read_input(given, RULES)
    assert [item["content"][0]["text"] for item in items] == contents
    if given in ("", []):
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
def test_invalid_item_is_refused_by_its_place(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read_items([given], "items", RULES)
    assert caught.value.param == param


# Items become the messages of a chat template.


SUMMARY = {"type": "compaction", "encrypted_content": seal_summary("It rains.")}
TOLD = summary_message(SUMMARY["encrypted_content"])


def said(role: str, text: Any = "", **members: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **members}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": arguments}


def answered(name: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": output}


def calls(*names: str) -> dict[str, Any]:
    """Returns the `tool_calls` of a message that calls functions without arguments."""
    functions = ({"name": name, "arguments": "{}"} for name in names)
    made = [{"type": "function", "id": each["name"], "function": each} for each in functions]
    return {"tool_calls": made}


A, B, C = said("user", "a"), said("assistant", "b"), said("system", "c")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([A, A, B, B], [A, A, B, B]),
        ([A, SUMMARY, A, B, A, A], [said("user", f"a\n\n{TOLD}\n\na"), B, A, A]),
        (
            [C, A, A, SUMMARY, called("f")],
            [C, said("user", f"a\n\na\n\n{TOLD}"), said("assistant", **calls("f"))],
        ),
        ([SUMMARY, C, SUMMARY], [said("user", TOLD), C, said("user", TOLD)]),
        ([thought("hm"), B], [{**B, "reasoning_content": "hm"}]),
        (
            [thought("hm"), thought("ah"), called("f"), called("g", "")],
            [said("assistant", reasoning_content="hm\nah", **calls("f", "g"))],
        ),
        ([called("f"), B], [{**B, **calls("f")}]),
        (
            [B, called("f"), answered("f", "x"), B],
            [{**B, **calls("f")}, said("tool", "x", tool_call_id="f"), B],
        ),
        ([thought("hm"), A], [said("assistant", reasoning_content="hm"), A]),
        (
            [called("f"), thought("hm"), called("g")],
            [
                said("assistant", **calls("f")),
                said("assistant", reasoning_content="hm", **calls("g")),
            ],
        ),
        (
            [answered("f", [{"type": "input_text", "text": part} for part in "ab"])],
            [said("tool", "a\nb", tool_call_id="f")],
        ),
        ([said("assistant", [{"type": "refusal", "refusal": "b"}])], [B]),
    ],
)
def test_items_become_chat_messages(items, expected):
    read = read_items(items, "input", RULES)
    assert to_messages(read).messages == expected
    assert to_messages(read, "rules").messages == [said("system", "rules"), *expected]
    assert read_items(read, "input", RULES) == read
