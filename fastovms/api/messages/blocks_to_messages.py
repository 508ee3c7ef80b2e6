"""Turns the messages of Anthropic's clients, which are lists of blocks, into those that a chat
template gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from fastovms.api.conversation.chat_messages import ChatMessages, Message
from fastovms.api.conversation.sealed_text import unseal
from fastovms.api.messages.content_blocks import Block, BlockReader, read_blocks, unknown_block
from fastovms.api.messages.server_tools import is_of_server, shown_text
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages
from fastovms.text.templating.template_messages import PlacedMessage

_ROLES: Final = ("user", "assistant", "system")
_CALLING: Final = ("text", "thinking", "redacted_thinking", "tool_use")
"""The types of blocks of an assistant's message."""

_BILLING: Final = "x-anthropic-billing-header:"
"""What a block begins with that Claude Code puts before what its system says: it differs from
request to request, so that nothing behind it could come from the prefix cache."""

_ERROR: Final = "Error: "


def to_messages(
    system: str | Sequence[Mapping[str, Any]] | None,
    given: Sequence[Mapping[str, Any]] | None,
    images: GivenImages | None = None,
) -> ChatMessages:
    """Returns the messages of a chat. Messages of one role that follow each other are one turn.

    Args:
        images: collects those of the messages; None = there may be none.

    Raises:
        InvalidField: they are absent or say nothing at all, or a block is malformed or of a type
            that is not taken, or an image too many.
    """
    if given is None:
        raise InvalidField("messages is required", param="messages")
    if not given:
        raise InvalidField("messages must not be empty", param="messages")
    reader = BlockReader(images)
    messages: list[Message] = []
    if system is not None:
        found = _system(_texts(system, "system"), reader)
        messages += [PlacedMessage(message, "system") for message in found]
    for role, turn in groupby(_blocks(given), key=lambda found: found[0]):
        blocks = [block for _, own in turn for block in own]
        match role:
            case "user":
                found = _user(blocks, reader)
            case "assistant":
                found = [_assistant(blocks, reader)]
            case _:
                found = _system(blocks, reader)
        place = blocks[0].place.rpartition(".content")[0] if blocks else "messages"
        messages += [PlacedMessage(message, place) for message in found]
    if not messages:
        raise InvalidField("messages must have one that says something", param="messages")
    return ChatMessages(messages, () if images is None else images.sources)


def _blocks(given: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Block]]]:
    """Yields the role and the blocks of each message."""
    for position, message in enumerate(given):
        place = f"messages[{position}]"
        role = message.get("role")
        if role not in _ROLES:
            name = f"{place}.role"
            raise InvalidField(
                f"{name} must be one of {', '.join(_ROLES)}, not {show(role)}", param=name
            )
        yield role, read_blocks(message.get("content"), f"{place}.content")


def _texts(system: str | Sequence[Mapping[str, Any]], place: str) -> list[Block]:
    return [
        block
        for block in read_blocks(system, place)
        if not str(block.members.get("text")).startswith(_BILLING)
    ]


def _system(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    for block in blocks:
        if block.kind != "text":
            raise unknown_block(block, {"text": None})
    text = reader(blocks)
    return [{"role": "system", "content": text}] if text else []


def _user(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    """Returns what the tools have answered, and what the user says besides: results stand right
    behind their calls."""
    messages = [_result(block, reader) for block in blocks if block.kind == "tool_result"]
    others = [block for block in blocks if block.kind != "tool_result"]
    if others or not messages:
        messages.append({"role": "user", "content": reader(others)})
    return messages


def _result(block: Block, reader: BlockReader) -> Message:
    content, is_error = block.members.get("content"), block.members.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise block.wrong("is_error", "true or false")
    call_id = block.filled_text("tool_use_id")
    text = "" if content is None else reader(read_blocks(content, f"{block.place}.content"))
    if is_error:
        # Templates know no failed results, so that the text has to say it.
        text = _ERROR + text
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(blocks: Sequence[Block], reader: BlockReader) -> Message:
    texts: list[Block] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block.kind:
            case "text":
                texts.append(block)
            case "thinking":
                thoughts.append(_thinking(block))
            case "redacted_thinking":
                pass  # only who has made it can read it
            case "tool_use":
                calls.append(_call(block))
            case kind if is_of_server(kind):
                if (shown := shown_text(block, reader)) is not None:
                    texts.append(shown)
            case _:
                raise unknown_block(block, dict.fromkeys(_CALLING))
    message: Message = {"role": "assistant", "content": reader(texts)}
    if reasoning := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None  # templates may tell the two apart
    return message


def _thinking(block: Block) -> str:
    """Returns thoughts as they were shown, or else as they were sealed."""
    signature = block.members.get("signature")
    if signature is not None and not isinstance(signature, str):
        raise block.wrong("signature", "a string")
    return block.text("thinking") or unseal(signature or "")


def _call(block: Block) -> dict[str, Any]:
    # Clients repeat what a model wrote, which may be any JSON value.
    function = {"name": block.filled_text("name"), "arguments": block.members.get("input")}
    return {"type": "function", "id": block.filled_text("id"), "function": function}
