"""Reads what tools that Anthropic's servers run, such as web search, have answered in a history,
which clients send back with each turn to whatever server they talk to."""

from __future__ import annotations

import json
from typing import Any, Final

from fastovms.api.conversation.chat_messages import Message
from fastovms.api.messages.content_blocks import Block, BlockReader, read_blocks

_RESULT: Final = "_tool_result"
_SEALED: Final = "encrypted_"
"""What the names of members begin with that only Anthropic can read."""


def is_result(kind: str) -> bool:
    """Returns whether blocks of a type hold what such a tool has answered."""
    return kind.endswith(_RESULT)


def server_result(block: Block, reader: BlockReader) -> Message:
    """Returns what a tool has answered, as far as it can be read.

    Raises:
        InvalidField: the block is malformed.
    """
    call_id, content = block.filled_text("tool_use_id"), block.members.get("content")
    if isinstance(content, dict):  # an error, files, or tools that were found
        return _message(call_id, json.dumps(_readable(content), ensure_ascii=False))
    texts = []
    for inner in read_blocks(content, f"{block.place}.content"):
        if inner.kind == "web_search_result":
            texts.append(f"{inner.text('title')}\n{inner.text('url')}")
        else:
            texts.append(reader([inner]))
    return _message(call_id, "\n".join(texts))


def _message(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _readable(value: Any) -> Any:
    """Returns a value without the members that only Anthropic can read."""
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _readable(each) for key, each in value.items() if not key.startswith(_SEALED)}
