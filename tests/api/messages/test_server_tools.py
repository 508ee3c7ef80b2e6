"""What Anthropic's own tools have left in a history is read as far as that can be."""

from __future__ import annotations

import json

import pytest

from fastovms.api.messages.blocks_to_messages import to_messages
from fastovms.errors import InvalidField

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
