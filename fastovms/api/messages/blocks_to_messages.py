"""Turns the messages of Anthropic's clients, which are lists of blocks, into those that a chat
template gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from fastovms.api.conversation.chat_messages import ChatMessages, Message
from fastovms.api.conversation.sealed_text import told_text, unseal
from fastovms.api.messages.content_blocks import Block, BlockReader, read_blocks, unknown_block
from fastovms.api.messages.server_tools import is_result, server_result
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
    """Returns the messages of a chat. Messages of one role that follow each other are one turn. A
    note takes the place of media that the model cannot read, but in what the user says last.

    Args:
        images: collects those of the messages; None = the model takes none.

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
                found = _assistant(blocks, reader)
            case _:
                found = _system(blocks, reader)
        place = blocks[0].place.rpartition(".content")[0] if blocks else "messages"
        messages += [PlacedMessage(message, place) for message in found]
    if not messages:
        raise InvalidField("messages must have one that says something", param="messages")
    sources = () if images is None else images.sources
    return ChatMessages(messages, sources, reader.unseen.warnings)


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
        blocks = read_blocks(message.get("content"), f"{place}.content")
        is_last = position == len(given) - 1 and role == "user"
        yield role, _with_new(blocks) if is_last else blocks


def _with_new(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks of the user's last message, those marked that the client has not sent
    before.

    What stands beside results of tools belongs to them. Claude Code adds what the user says after a
    refusal to the message that was refused, so that a block with more text behind it is an old one.
    """
    kinds = [block.kind for block in blocks]
    texts = [position for position, kind in enumerate(kinds) if kind == "text"]
    if "tool_result" in kinds:
        return [*blocks]
    first_new = texts[-1] if len(texts) > 1 else 0
    return [block._replace(is_new=place >= first_new) for place, block in enumerate(blocks)]


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


def _assistant(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    """Returns what the assistant has said, thought and called. What a tool of Anthropic's servers
    has answered in between is a message of its own, as of any tool."""
    messages: list[Message] = []
    turn = _Turn()
    for block in blocks:
        match block.kind:
            case "text":
                turn.texts.append(block)
            case "compaction":
                turn.texts += _summary(block)
            case "thinking":
                turn.thoughts.append(_thinking(block))
            case "redacted_thinking" | "fallback":
                pass  # the first can be read by its maker only, the second is not for the model
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                turn.calls.append(_call(block))
            case kind if is_result(kind):
                messages += [turn.message(reader), server_result(block, reader)]
                turn = _Turn()
            case _:
                raise unknown_block(block, dict.fromkeys(_CALLING))
    if turn != _Turn() or not messages:
        messages.append(turn.message(reader))
    return messages


@dataclass(slots=True)
class _Turn:
    """What the assistant has said before a tool answers."""

    texts: list[Block] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self, reader: BlockReader) -> Message:
        message: Message = {"role": "assistant", "content": reader(self.texts)}
        if reasoning := "\n".join(filter(None, self.thoughts)):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
            message["content"] = message["content"] or None  # templates may tell the two apart
        return message


def _summary(block: Block) -> list[Block]:
    """Returns the summary of what came before as a text; one that failed has none."""
    if block.members.get("content") is None:
        return []
    return [Block({"type": "text", "text": told_text(block.text("content"))}, block.place)]


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
