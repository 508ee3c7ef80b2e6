"""Tests of `fastovms/parts/messages/request.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.api.chat_messages import seal
from fastovms.api.image_parts import ImageSource, RequestImages, image_tag
from fastovms.errors import InvalidField
from fastovms.parts.messages.request import (
    MessageFields,
    MessagesRequest,
    check_filling,
    read_fields,
    read_tools,
    to_messages,
)

# Tools and tool choices in Anthropic's format.


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
CACHED = {"cache_control": {"type": "ephemeral"}}


def tool(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool", "input_schema": SCHEMA, **members}


def test_template_receives_functions_without_client_members() -> None:
    use = read_tools([tool(type="custom", input_examples=[{}], **CACHED), SEARCH], None)
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
        ({"type": "tool", "name": "g"}, ["g"], True, True, False),
        ({"type": "none"}, [], False, False, True),
    ],
)
def test_tool_choice_selects_tools_and_whether_calls_are_required(
    choice: Any, names: list[str], is_required: bool, is_named: bool, is_parallel: bool
) -> None:
    use = read_tools([tool(strict=True), tool("g")], choice)
    assert [each.name for each in use.tools] == names
    assert (use.is_required, use.is_named, use.is_parallel) == (is_required, is_named, is_parallel)
    assert use.is_strict is ("f" in names)
    assert is_required or read_tools(None, choice).tools == []


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
def test_invalid_tools_or_choice_are_refused_by_field_name(
    tools: list[Any], choice: Any, param: str
) -> None:
    with pytest.raises(InvalidField, match=param.replace("[", r"\[")) as caught:
        read_tools(tools, choice)
    assert caught.value.param == param


# Content blocks become the messages of a chat template.


URL = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
DATA = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
BASE64 = {"type": "image", "source": DATA, **CACHED}
HI = {"role": "user", "content": "Hi"}


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def document(*, title: str | None = None, context: str | None = None, **source: Any) -> Any:
    return {"type": "document", "source": source, "title": title, "context": context}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def use(id: Any = "t1", name: str = "f", kind: str = "tool_use", **members: Any) -> dict[str, Any]:
    return {"type": kind, "id": id, "name": name, "input": {"a": 1}, **members}


def result(content: Any = "18", kind: str = "tool_result", **members: Any) -> dict[str, Any]:
    return {"type": kind, "tool_use_id": "t1", "content": content, **members}


def thinking(words: str = "", **members: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, **members}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def said(role: str, content: str | None, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


CALL = {"type": "function", "id": "t1", "function": {"name": "f", "arguments": {"a": 1}}}


def answered(content: str = "18") -> dict[str, Any]:
    return said("tool", content, tool_call_id="t1")


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([{"type": "tool_reference", "tool_name": "f"}], "f"),
        ([{"type": "browser_state", "tabs": []}], '{"tabs": [], "state_changes": null}'),
        ([{"type": "container_upload", "file_id": "f"}], "[file: this model cannot read it]"),
        ([document(type="base64", title="a.pdf")], "[file a.pdf: this model cannot read it]"),
        ([], ""),
        ([text("a", **CACHED), text("b", citations=None)], "a\nb"),
        ([text("a"), BASE64, text("a"), URL], f"a{image_tag(0)}a{image_tag(1)}"),
        ([document(type="text", media_type="text/plain", data="d")], "d"),
        ([document(type="text", data="d", title="t", context="c")], "t\nc\nd"),
        ([document(type="content", content="d")], "d"),
        ([document(type="content", content=[text("a"), URL])], f"a{image_tag(0)}"),
        (
            [{"type": "search_result", "title": "t", "source": "s", "content": [text("a")]}],
            "t\ns\na",
        ),
    ],
)
def test_content_blocks_are_joined_into_text_with_image_tags(blocks: Any, words: str) -> None:
    given = [user(*blocks), assistant(text("b")), HI]  # parts of older turns may be unreadable
    assert to_messages(None, given, RequestImages(2)).messages[0] == said("user", words)


def test_image_sources_have_the_field_name_of_their_block() -> None:
    images = RequestImages(2)
    to_messages(None, [user(BASE64, URL)], images)
    assert images.sources == [
        ImageSource("data:image/png;base64,AAAA", "messages[0].content[0].source.data", "auto"),
        ImageSource("http://a/b.png", "messages[0].content[1].source.url", "auto"),
    ]


@pytest.mark.parametrize(
    ("system", "messages"),
    [
        (None, [HI]),
        ("", [HI]),
        ([], [HI]),
        ("Be brief.", [said("system", "Be brief."), HI]),
        (
            [text("x-anthropic-billing-header: cch=1;"), text("Be", **CACHED), text("brief.")],
            [said("system", "Be\nbrief."), HI],
        ),
    ],
)
def test_nonempty_system_prompt_becomes_the_first_message(system: Any, messages: list[Any]) -> None:
    assert to_messages(system, [HI]).messages == messages


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([HI, user(text("b"))], [said("user", "Hi\nb")]),
        ([HI, assistant(text("b"))], [HI, said("assistant", "b")]),
        ([HI, assistant(text("a")), assistant(text("b"))], [HI, said("assistant", "a\nb")]),
        (
            [assistant(thinking("hm", signature="s"), text("b"))],
            [said("assistant", "b", reasoning_content="hm")],
        ),
        (
            [assistant(thinking(signature=seal("hm")))],
            [said("assistant", "", reasoning_content="hm")],
        ),
        (
            [assistant({"type": "redacted_thinking", "data": "xyz"}, text("b"))],
            [said("assistant", "b")],
        ),
        (
            [assistant(use()), user(result())],
            [said("assistant", None, tool_calls=[CALL]), answered()],
        ),
        (
            [assistant(text("a"), use()), user(text("b"), result(), text("c"))],
            [said("assistant", "a", tool_calls=[CALL]), answered(), said("user", "b\nc")],
        ),
        ([user(result([text("18")]))], [answered()]),
        ([user(result(None))], [answered("")]),
        ([user(result(is_error=True))], [answered("Error: 18")]),
        ([user(result(is_error=False))], [answered()]),
        (
            [user(URL, result([URL, text("b")]))],
            [answered(f"{image_tag(0)}b"), said("user", image_tag(1))],
        ),
        ([HI, said("system", "Now in French.")], [HI, said("system", "Now in French.")]),
    ],
)
def test_content_blocks_become_chat_messages(given: list[Any], messages: list[Any]) -> None:
    assert to_messages(None, given, RequestImages(16)).messages == messages


PAGE = {"type": "web_search_result", "title": "Rain", "url": "http://rain", "encrypted_content": 1}
ERROR = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
REFERENCES = {"tool_references": [{"type": "tool_reference", "tool_name": "f"}]}


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("web_search_tool_result", [PAGE, PAGE], "Rain\nhttp://rain\nRain\nhttp://rain"),
        ("web_search_tool_result", ERROR, json.dumps(ERROR)),
        ("web_search_tool_result", [], ""),
        ("mcp_tool_result", [text("wet")], "wet"),
        ("mcp_tool_result", "dry", "dry"),
        ("tool_search_tool_result", REFERENCES, json.dumps(REFERENCES)),
        ("code_execution_tool_result", {"stdout": "a", "encrypted_stdout": "x"}, '{"stdout": "a"}'),
    ],
)
def test_hosted_tool_and_its_result_become_a_call_and_its_answer(kind, content, words) -> None:
    call = use(kind="mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use")
    given = [assistant(call, result(content, kind), text("It rains."))]
    assert to_messages(None, given).messages == [
        said("assistant", None, tool_calls=[CALL]),
        answered(words),
        said("assistant", "It rains."),
    ]


SERVER = "server_tool_use"
FOUND = "web_search_tool_result"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, ""),
        ([], ""),
        ([said("system", "")], ""),
        ([{"content": "a"}], "[0].role"),
        ([HI, said("tool", "a")], "[1].role"),
        ([{"role": "user"}], "[0].content"),
        ([{"role": "user", "content": 5}], "[0].content"),
        ([user(5)], "[0].content[0]"),
        ([user({})], "[0].content[0].type"),
        ([user(URL, URL, URL)], "[0].content[2].source.url"),
        ([user(text("a"), {"type": "text"})], "[0].content[1].text"),
        ([user(text(5))], "[0].content[0].text"),
        ([user({"type": "other"})], "[0].content[0]"),
        ([user({"type": "image"})], "[0].content[0].source"),
        ([user(image())], "[0].content[0].source.type"),
        ([user(image(type="file"))], "[0].content[0].source.type"),
        ([user(image(type="url", url=""))], "[0].content[0].source.url"),
        ([user(image(type="base64", data="A"))], "[0].content[0].source.media_type"),
        ([user(document(type="base64"))], "[0].content[0].source.type"),
        ([user(document(type="content", content=5))], "[0].content[0].source.content"),
        (
            [user(document(type="content", content=[{"type": "other"}]))],
            "[0].content[0].source.content[0]",
        ),
        ([user({"type": "search_result", "content": []})], "[0].content[0].title"),
        ([user(use())], "[0].content[0]"),
        ([user(use(kind=SERVER))], "[0].content[0]"),
        ([HI, assistant(result())], "[1].content[0]"),
        ([HI, assistant(URL)], "[1].content[0]"),
        ([{"role": "system", "content": [URL]}], "[0].content[0]"),
        ([assistant(use(id=None))], "[0].content[0].id"),
        ([assistant(use(name=""))], "[0].content[0].name"),
        ([assistant(use(kind=SERVER, name=""))], "[0].content[0].name"),
        ([assistant(result(5, FOUND))], "[0].content[0].content"),
        ([assistant(result(["a"], FOUND))], "[0].content[0].content[0]"),
        ([assistant(result([{**PAGE, "url": 5}], FOUND))], "[0].content[0].content[0].url"),
        ([assistant(result([], FOUND, tool_use_id=1))], "[0].content[0].tool_use_id"),
        ([assistant({"type": "thinking"})], "[0].content[0].thinking"),
        ([assistant(thinking(signature=5))], "[0].content[0].signature"),
        ([user({"type": "tool_result"})], "[0].content[0].tool_use_id"),
        ([user(result(5))], "[0].content[0].content"),
        ([user(result([result()]))], "[0].content[0].content[0]"),
        ([user(result(is_error="yes"))], "[0].content[0].is_error"),
    ],
)
def test_malformed_message_is_refused_by_its_place(given: Any, place: str) -> None:
    with pytest.raises(InvalidField) as caught:
        to_messages(None, given, RequestImages(2))
    assert caught.value.param == f"messages{place}"
    assert caught.value.param in caught.value.message


@pytest.mark.parametrize("system", [[URL], [5]])
def test_malformed_system_prompt_is_refused_by_its_place(system: Any) -> None:
    with pytest.raises(InvalidField, match=r"system\[0\]"):
        to_messages(system, [HI], RequestImages(16))


def test_images_of_a_model_that_takes_none_are_refused() -> None:
    with pytest.raises(InvalidField, match=r'content\[0\] is of type "image".*only text'):
        to_messages(None, [user(URL)])


# The fields of a request other than its messages.


FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
ENABLED = {"type": "enabled", "budget_tokens": 1024}
CLEARED = ("clear_tool_uses_20250919", "clear_thinking_20251015")


def read(**fields: Any) -> MessageFields:
    return read_fields(MessagesRequest(**fields))


@pytest.mark.parametrize(
    ("thinking", "thinks", "omits"),
    [
        (None, None, False),
        (ENABLED, True, False),
        ({**ENABLED, "display": "omitted"}, True, True),
        ({"type": "adaptive", "display": "summarized"}, True, False),
        ({"type": "between_tools"}, True, False),
        ({"type": "disabled"}, False, False),
    ],
)
def test_thinking_field_sets_reasoning_and_hidden_display(
    thinking: Any, thinks: bool | None, omits: bool
) -> None:
    fields = read(thinking=thinking)
    assert (fields.thinks, fields.omits_thinking) == (thinks, omits)


@pytest.mark.parametrize(
    ("given", "effort", "name", "format"),
    [
        ({}, None, "output_config.format", None),
        ({"output_config": {"effort": "max"}}, "max", "output_config.format", None),
        ({"output_config": {"format": FORMAT}}, None, "output_config.format", FORMAT),
        (
            {"output_format": FORMAT, "output_config": {"effort": "low"}},
            "low",
            "output_format",
            FORMAT,
        ),
    ],
)
def test_effort_and_format_are_read_from_output_fields(
    given: Any, effort: str | None, name: str, format: Any
) -> None:
    fields = read(**given)
    assert (fields.effort, fields.format_name, fields.format) == (effort, name, format)


@pytest.mark.parametrize(
    ("edits", "kinds"),
    [
        (None, ()),
        ([], ()),
        ([{"type": "clear_thinking_20251015", "keep": "all"}], ()),
        ([{"type": kind} for kind in CLEARED], CLEARED),
    ],
)
def test_context_edits_that_are_not_made_warn(edits: Any, kinds: tuple[str, ...]) -> None:
    place = "context_management.edits[{}] of type {}"
    warnings = [place.format(number, kind) for number, kind in enumerate(kinds)]
    assert read(context_management={"edits": edits}).warnings == warnings


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "user_1"}, "service_tier": "auto", "speed": "fast"},
        {"metadata": {"user_id": None}, "service_tier": "standard_only", "inference_geo": "eu"},
        {**CACHED, "diagnostics": {"previous_message_id": None}},
        {"mcp_servers": [], "n": 1, "best_of": 1},
    ],
)
def test_fields_without_effect_are_accepted(fields: Any) -> None:
    assert read(**fields) == MessageFields(warnings=[])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {**ENABLED, "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {**ENABLED, "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": "9"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "no"}}, "thinking.display"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"output_config": {"format": 5}}, "output_config.format"),
        ({"output_config": {"format": {}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "output_format"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "slow"}, "speed"),
        ({"context_management": {"edits": 5}}, "context_management.edits"),
        ({"context_management": {"edits": [5]}}, "context_management.edits[0]"),
        ({"context_management": {"edits": [{}]}}, "context_management.edits[0].type"),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers"),
        ({"container": "c_1"}, "container"),
        ({"thread": {"id": "t"}}, "thread"),
        ({"compaction": {"type": "c"}}, "compaction"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"stop": "a", "stop_sequences": ["b"]}, "stop"),
    ],
)
def test_invalid_field_is_refused_by_its_name(fields: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"),
        ({"thinking": ENABLED}, "thinking"),
        ({"output_config": {"format": FORMAT}}, "output_config.format"),
        ({"output_format": FORMAT}, "output_format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ],
)
def test_request_that_fills_the_cache_asks_for_no_answer(fields: Any, name: str) -> None:
    check_filling(MessagesRequest(thinking={"type": "adaptive"}, tool_choice={"type": "auto"}))
    with pytest.raises(InvalidField, match="which only fills the cache") as caught:
        check_filling(MessagesRequest(**fields))
    assert caught.value.param == name
