"""Tests of `fastovms/parts/messages/request.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastovms.api.chat_messages import seal
from fastovms.api.image_parts import GivenImages, ImageSource, image_tag
from fastovms.errors import InvalidField
from fastovms.parts.messages.request import (
    BlockReader,
    MessageFields,
    MessagesRequest,
    check_filling,
    read_blocks,
    read_fields,
    read_tools,
    to_messages,
)

# Tools and choices in Anthropic's form.


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def tool(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool", "input_schema": SCHEMA, **members}


def test_template_receives_functions_without_client_members() -> None:
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
def test_tool_choice_selects_tools_and_whether_calls_are_required(
    choice: Any, names: list[str], is_required: bool, is_named: bool, is_parallel: bool
) -> None:
    use = read_tools([tool(), tool("g")], choice)
    assert [each.name for each in use.tools] == names
    assert use.is_required is is_required
    assert use.is_named is is_named
    assert use.is_parallel is is_parallel


def test_strict_tool_makes_the_use_of_tools_strict() -> None:
    assert read_tools([tool(strict=True)], None).is_strict


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}])
def test_absent_tools_are_read_as_an_empty_list(choice: Any) -> None:
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
def test_invalid_tools_or_choice_are_refused_by_field_name(
    tools: list[Any], choice: Any, param: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        read_tools(tools, choice)
    assert caught.value.param == param
    assert param in caught.value.message


# What Anthropic's own tools have left in a history is read as far as that can be.


USE = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rain"}}
PAGE = {
    "type": "web_search_result", "title": "Rain", "url": "http://rain", "encrypted_content": "x"
}  # fmt: skip
REFERENCE = {"type": "tool_reference", "tool_name": "f"}
ERROR = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}


def result(content: object, kind: str = "web_search_tool_result") -> dict[str, object]:
    return {"type": kind, "tool_use_id": "s1", "content": content}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([USE, result([PAGE, PAGE])], "Rain\nhttp://rain\nRain\nhttp://rain"),
        ([USE, result(ERROR)], json.dumps(ERROR)),
        ([USE, result([])], ""),
        ([{**USE, "type": "mcp_tool_use", "server_name": "a"},
          result([{"type": "text", "text": "wet"}], "mcp_tool_result")], "wet"),
        ([USE, result("dry", "mcp_tool_result")], "dry"),
        ([USE, result({"type": "tool_search_tool_search_result", "tool_references": [REFERENCE]},
                      "tool_search_tool_result")],
         '{"type": "tool_search_tool_search_result", "tool_references": '
         '[{"type": "tool_reference", "tool_name": "f"}]}'),
        ([USE, result({"stdout": "a", "encrypted_stdout": "x"}, "code_execution_tool_result")],
         '{"stdout": "a"}'),
    ],
)  # fmt: skip
def test_answers_are_messages_of_a_tool(blocks, text) -> None:
    said = {"type": "text", "text": "It rains."}
    found = to_messages(None, [{"role": "assistant", "content": [*blocks, said]}]).messages
    call = {"name": "web_search", "arguments": {"query": "rain"}}
    assert found == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "id": "s1", "function": call}],
        },
        {"role": "tool", "tool_call_id": "s1", "content": text},
        {"role": "assistant", "content": "It rains."},
    ]


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({**USE, "name": ""}, "name"),
        ({**USE, "id": None}, "id"),
        (result(5), "content"),
        (result(["a"]), "content[0]"),
        (result([{**PAGE, "url": 5}]), "content[0].url"),
        ({**result([]), "tool_use_id": 1}, "tool_use_id"),
    ],
)
def test_malformed_blocks_are_named(block, field) -> None:
    with pytest.raises(InvalidField) as caught:
        to_messages(None, [{"role": "assistant", "content": [block]}])
    assert caught.value.param == f"messages[0].content[0].{field}"


def test_a_user_has_no_such_blocks() -> None:
    with pytest.raises(InvalidField, match="server_tool_use"):
        to_messages(None, [{"role": "user", "content": [USE]}])


# Blocks become text, with tags where images stand.


URL = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
BASE64 = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    "cache_control": {"type": "ephemeral"},
}
TEXT = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "tool_reference", "tool_name": "f"}], "f"),
        ([{"type": "browser_state", "tabs": []}], '{"tabs": [], "state_changes": null}'),
        ([{"type": "container_upload", "file_id": "f"}], "[file: this model cannot read it]"),
        (
            [{**document(type="base64"), "title": "a.pdf"}],
            "[file a.pdf: this model cannot read it]",
        ),
        ("a", "a"),
        ([], ""),
        ([TEXT, {"type": "text", "text": "b", "citations": None}], "a\nb"),
        ([TEXT, BASE64, TEXT, URL], f"a{image_tag(0)}a{image_tag(1)}"),
        ([document(type="text", media_type="text/plain", data="d")], "d"),
        ([{**document(type="text", data="d"), "title": "t", "context": "c"}], "t\nc\nd"),
        ([document(type="content", content="d")], "d"),
        ([document(type="content", content=[TEXT, URL])], f"a{image_tag(0)}"),
        ([{"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}], "t\ns\na"),
    ],
)
def test_content_blocks_are_joined_into_text_with_image_tags(content: Any, text: str) -> None:
    assert BlockReader(GivenImages(2))(read_blocks(content, "content")) == text


def test_image_sources_keep_the_field_name_of_their_block() -> None:
    images = GivenImages(2)
    BlockReader(images)(read_blocks([BASE64, URL], "content"))
    assert images.sources == [
        ImageSource("data:image/png;base64,AAAA", "content[0].source.data", "auto"),
        ImageSource("http://a/b.png", "content[1].source.url", "auto"),
    ]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "content"),
        (None, "content"),
        ([5], "content[0]"),
        ([{}], "content[0].type"),
        ([URL, URL, URL], "content[2].source.url"),
        ([TEXT, {"type": "text"}], "content[1].text"),
        ([{"type": "text", "text": 5}], "content[0].text"),
        ([{"type": "other"}], "content[0]"),
        ([{"type": "tool_result"}], "content[0]"),
        ([{"type": "image"}], "content[0].source"),
        ([{"type": "image", "source": {}}], "content[0].source.type"),
        ([{"type": "image", "source": {"type": "file"}}], "content[0].source.type"),
        ([{"type": "image", "source": {"type": "url", "url": ""}}], "content[0].source.url"),
        (
            [{"type": "image", "source": {"type": "base64", "data": "A"}}],
            "content[0].source.media_type",
        ),
        ([document(type="base64")], "content[0].source.type"),
        ([document(type="content", content=5)], "content[0].source.content"),
        (
            [document(type="content", content=[{"type": "other"}])],
            "content[0].source.content[0]",
        ),
        ([{"type": "search_result", "content": []}], "content[0].title"),
    ],
)
def test_content_blocks_faults(content: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        BlockReader(GivenImages(2))(read_blocks(content, "content", is_new=True))
    assert caught.value.param == param
    assert param in caught.value.message


def test_images_of_a_model_that_takes_none() -> None:
    with pytest.raises(InvalidField, match=r'content\[0\] is of type "image".*only text'):
        BlockReader()(read_blocks([URL], "content", is_new=True))


# Messages of blocks become those that a chat template gets.


HI = {"role": "user", "content": "Hi"}
PIXEL = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {"a": 1}}


def blocks_to_messages_result(content: Any = "18", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **members}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


CALL = {"type": "function", "id": "toolu_1", "function": {"name": "f", "arguments": {"a": 1}}}
ANSWERED = {"role": "tool", "tool_call_id": "toolu_1", "content": "18"}


@pytest.mark.parametrize(
    ("system", "messages"),
    [
        (None, [HI]),
        ("", [HI]),
        ([], [HI]),
        ("Be brief.", [{"role": "system", "content": "Be brief."}, HI]),
        (
            [
                text("x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"),
                {**text("Be"), "cache_control": {"type": "ephemeral"}},
                text("brief."),
            ],
            [{"role": "system", "content": "Be\nbrief."}, HI],
        ),
    ],
)
def test_nonempty_system_prompt_becomes_the_first_message(system: Any, messages: list[Any]) -> None:
    assert to_messages(system, [HI]).messages == messages


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([user(text("a"), text("b"))], [{"role": "user", "content": "a\nb"}]),
        ([user()], [{"role": "user", "content": ""}]),
        ([HI, user(text("b"))], [{"role": "user", "content": "Hi\nb"}]),
        ([HI, assistant(text("b"))], [HI, {"role": "assistant", "content": "b"}]),
        (
            [HI, assistant(text("a")), assistant(text("b"))],
            [HI, {"role": "assistant", "content": "a\nb"}],
        ),
        (
            [assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("b"))],
            [{"role": "assistant", "content": "b", "reasoning_content": "hm"}],
        ),
        (
            [assistant({"type": "thinking", "thinking": "", "signature": seal("hm")})],
            [{"role": "assistant", "content": "", "reasoning_content": "hm"}],
        ),
        (
            [assistant({"type": "redacted_thinking", "data": "xyz"}, text("b"))],
            [{"role": "assistant", "content": "b"}],
        ),
        (
            [assistant(use()), user(blocks_to_messages_result())],
            [{"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWERED],
        ),
        (
            [assistant(text("a"), use()), user(text("b"), blocks_to_messages_result(), text("c"))],
            [
                {"role": "assistant", "content": "a", "tool_calls": [CALL]},
                ANSWERED,
                {"role": "user", "content": "b\nc"},
            ],
        ),
        ([user(blocks_to_messages_result([text("18")]))], [ANSWERED]),
        ([user(blocks_to_messages_result(None))], [{**ANSWERED, "content": ""}]),
        ([user(blocks_to_messages_result(is_error=True))], [{**ANSWERED, "content": "Error: 18"}]),
        ([user(blocks_to_messages_result(is_error=False))], [ANSWERED]),
        (
            [user(PIXEL, blocks_to_messages_result([PIXEL, text("b")]))],
            [
                {**ANSWERED, "content": f"{image_tag(0)}b"},
                {"role": "user", "content": image_tag(1)},
            ],
        ),
        (
            [HI, {"role": "system", "content": "Now in French."}],
            [HI, {"role": "system", "content": "Now in French."}],
        ),
    ],
)
def test_content_blocks_become_chat_messages(given: list[Any], messages: list[Any]) -> None:
    assert to_messages(None, given, GivenImages(16)).messages == messages


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{"role": "system", "content": ""}], "messages"),
        ([{"content": "a"}], "messages[0].role"),
        ([HI, {"role": "tool", "content": "a"}], "messages[1].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(use())], "messages[0].content[0]"),
        ([HI, assistant(blocks_to_messages_result())], "messages[1].content[0]"),
        ([HI, assistant(PIXEL)], "messages[1].content[0]"),
        ([{"role": "system", "content": [PIXEL]}], "messages[0].content[0]"),
        ([assistant({**use(), "id": None})], "messages[0].content[0].id"),
        ([assistant({**use(), "name": ""})], "messages[0].content[0].name"),
        ([assistant({"type": "thinking"})], "messages[0].content[0].thinking"),
        (
            [assistant({"type": "thinking", "thinking": "", "signature": 5})],
            "messages[0].content[0].signature",
        ),
        ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
        ([user(blocks_to_messages_result(5))], "messages[0].content[0].content"),
        (
            [user(blocks_to_messages_result([blocks_to_messages_result()]))],
            "messages[0].content[0].content[0]",
        ),
        ([user(blocks_to_messages_result(is_error="yes"))], "messages[0].content[0].is_error"),
    ],
)
def test_blocks_to_messages_faults(given: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        to_messages(None, given, GivenImages(16))
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("system", [[PIXEL], [5]])
def test_faults_of_the_system(system: Any) -> None:
    with pytest.raises(InvalidField, match=r"system\[0\]"):
        to_messages(system, [HI], GivenImages(16))


# What a request says beside its chat.


FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


def read(**fields: Any) -> MessageFields:
    return read_fields(MessagesRequest(**fields))


@pytest.mark.parametrize(
    ("thinking", "thinks", "omits"),
    [
        (None, None, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, False),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, True, True),
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
        ({"output_format": FORMAT}, None, "output_format", FORMAT),
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
    ("edits", "warnings"),
    [
        (None, []),
        ([], []),
        ([{"type": "clear_thinking_20251015", "keep": "all"}], []),
        (
            [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}],
            [
                "context_management.edits[0] of type clear_tool_uses_20250919",
                "context_management.edits[1] of type clear_thinking_20251015",
            ],
        ),
    ],
)
def test_edits_of_the_context(edits: Any, warnings: list[str]) -> None:
    assert read(context_management={"edits": edits}).warnings == warnings


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "user_1"}, "service_tier": "auto", "speed": "fast"},
        {"metadata": {"user_id": None}, "service_tier": "standard_only", "inference_geo": "eu"},
        {"cache_control": {"type": "ephemeral"}, "diagnostics": {"previous_message_id": None}},
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
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
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
def test_messages_fields_faults(fields: Any, param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"format": FORMAT}}, "output_config.format"),
        ({"output_format": FORMAT}, "output_format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ],
)
def test_a_cache_is_filled_without_an_answer(fields: Any, name: str) -> None:
    with pytest.raises(InvalidField, match="which only fills the cache") as caught:
        check_filling(MessagesRequest(**fields))
    assert caught.value.param == name


def test_other_fields_are_accepted_beside_a_filling_request() -> None:
    check_filling(
        MessagesRequest(
            stream=False,
            thinking={"type": "adaptive"},
            output_config={"effort": "low"},
            tool_choice={"type": "auto"},
        )
    )
