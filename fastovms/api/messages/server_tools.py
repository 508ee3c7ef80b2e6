"""Reads what tools that Anthropic's servers run, such as web search, have left in a history, which
clients send back with each turn to whatever server they talk to."""

from __future__ import annotations

from typing import Final

from fastovms.api.messages.content_blocks import Block, BlockReader, read_blocks

_USES: Final = ("server_tool_use", "mcp_tool_use")
_RESULT: Final = "_tool_result"


def is_of_server(kind: str) -> bool:
    """Returns whether blocks of a type tell of such tools, in messages of the assistant."""
    return kind in _USES or kind.endswith(_RESULT)


def shown_text(block: Block, reader: BlockReader) -> Block | None:
    """Returns what can be read of a block, as a text; None = nothing. Of pages that were found
    that is the title and the URL: their content is encrypted.

    Raises:
        InvalidField: the block is malformed.
    """
    if block.kind in _USES:
        block.filled_text("id")
        block.filled_text("name")
        block.object("input")
        return None
    block.filled_text("tool_use_id")
    content = block.members.get("content")
    if isinstance(content, dict):  # an error, or files
        return None
    texts = []
    for inner in read_blocks(content, f"{block.place}.content"):
        if inner.kind == "text":
            texts.append(reader([inner]))
        elif inner.kind == "web_search_result":
            texts.append(f"{inner.text('title')}\n{inner.text('url')}")
    text = "\n".join(texts)
    return Block({"type": "text", "text": text}, block.place) if text else None
