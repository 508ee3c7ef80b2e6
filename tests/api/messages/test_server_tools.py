"""What Anthropic's own tools have left in a history is read as far as that can be."""

from __future__ import annotations

import pytest

from fastovms.api.messages.blocks_to_messages import to_messages
from fastovms.errors import InvalidField

USE = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rain"}}
PAGE = {
    "type": "web_search_result", "title": "Rain", "url": "http://rain", "encrypted_content": "x"
}  # fmt: skip
ERROR = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}


def result(content: object, kind: str = "web_search_tool_result") -> dict[str, object]:
    return {"type": kind, "tool_use_id": "s1", "content": content}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([USE, result([PAGE, PAGE]), {"type": "text", "text": "It rains."}],
         "Rain\nhttp://rain\nRain\nhttp://rain\nIt rains."),
        ([USE, result(ERROR), {"type": "text", "text": "It rains."}], "It rains."),
        ([USE, result([])], ""),
        ([{**USE, "type": "mcp_tool_use", "server_name": "a"},
          result([{"type": "text", "text": "wet"}], "mcp_tool_result")], "wet"),
        ([result("dry", "mcp_tool_result")], "dry"),
        ([result([{"type": "tool_reference", "tool_name": "f"}], "tool_search_tool_result")], ""),
    ],
)  # fmt: skip
def test_what_can_be_read_is_the_assistants_text(blocks, text) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": blocks}]
    found = to_messages(None, messages).messages
    assert [message["role"] for message in found] == ["user", "assistant"]
    assert found[1]["content"] == text


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({**USE, "input": "rain"}, "input"),
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
