"""Turns items into the messages that a chat template gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastovms.api.conversation.chat_messages import ChatMessages, Message
from fastovms.api.conversation.sealed_text import told_summary, unseal
from fastovms.api.conversation.tool_targets import flat_name
from fastovms.api.responses.input.hosted_items import Item, as_functions
from fastovms.api.responses.input.item_text import text_of
from fastovms.api.serving.images import UnseenParts
from fastovms.media.loader import GivenImages
from fastovms.text.custom_input import input_arguments
from fastovms.text.templating.template_messages import PlacedMessage


def to_messages(
    items: Sequence[Item],
    instructions: str | None = None,
    *,
    num_earlier: int = 0,
    images: GivenImages | None = None,
) -> ChatMessages:
    """Returns the messages of items: what a model said, thought and called in one turn is one
    message, however many items it is. A note takes the place of media that the model cannot read,
    but in what the user says last.

    Args:
        items: read, with no reference among them.
        instructions: what the system says before everything else.
        num_earlier: how many of the items came before the request's input.
        images: collects those of the items; None = the model takes none.

    Raises:
        InvalidField: the user's last message has media that the model cannot read, or there is one
            image too many.
    """
    unseen = UnseenParts()
    messages: list[Message] = []
    if instructions:
        message = {"role": "system", "content": instructions}
        messages.append(PlacedMessage(message, "instructions"))
    turn = _Turn()
    is_compacted = False
    for position, item in _told(items, -num_earlier):
        name = f"input[{position}]" if position >= 0 else "input"
        if not turn.takes(item):
            messages += turn.messages()
            turn = _Turn()
        if turn.takes(item):
            turn.add(item, name)
            is_compacted = False
            continue
        is_new = item is items[-1] and item.get("role") == "user"
        message = _others_message(item, name, images, None if is_new else unseen)
        is_compacted = item["type"] == "compaction" or (is_compacted and message["role"] == "user")
        if is_compacted:
            message = _joined(messages, message)
        messages.append(PlacedMessage(message, name))
    messages += turn.messages()
    return ChatMessages(messages, () if images is None else images.sources, unseen.warnings)


def _told(items: Sequence[Item], first: int) -> Iterator[tuple[int, Item]]:
    """Yields the positions of items, and what a model is told of each."""
    for position, item in enumerate(items, first):
        for told in as_functions(item):
            yield position, told


@dataclass(slots=True)
class _Turn:
    """What a model has done since somebody else said something. It thinks first and speaks once."""

    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    place: str = ""

    def takes(self, item: Item) -> bool:
        match item["type"]:
            case "reasoning":
                return self.content is None and not self.calls
            case "message":
                return item["role"] == "assistant" and self.content is None
            case kind:
                return kind in ("function_call", "custom_tool_call")

    def add(self, item: Item, place: str) -> None:
        self.place = self.place or place
        match item["type"]:
            case "reasoning":
                self.reasoning.append(_reasoning(item))
            case "message":
                self.content = text_of(item["content"])
            case "function_call":
                self._add_call(item, item["arguments"] or "{}")
            case "custom_tool_call":
                self._add_call(item, input_arguments(item["input"]))

    def _add_call(self, item: Item, arguments: str) -> None:
        name = flat_name(item["name"], item.get("namespace"))
        function = {"name": name, "arguments": arguments}
        self.calls.append({"type": "function", "id": item["call_id"], "function": function})

    def messages(self) -> list[Message]:
        reasoning = "\n".join(filter(None, self.reasoning))
        if not (reasoning or self.calls or self.content is not None):
            return []
        message: Message = {"role": "assistant", "content": self.content or ""}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return [PlacedMessage(message, self.place)]


def _joined(messages: list[Message], message: Message) -> Message:
    """Returns a message of the user with those of the user before it, which are taken away: many
    templates want answers between two of them, and a compaction has left those out."""
    texts = [message["content"]]
    while messages and messages[-1]["role"] == "user":
        texts.insert(0, messages.pop()["content"])
    return {"role": "user", "content": "\n\n".join(texts)}


def _reasoning(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or []
    return text_of(parts) or unseal(item.get("encrypted_content") or "")


def _others_message(
    item: Item, name: str, images: GivenImages | None, unseen: UnseenParts | None
) -> Message:
    if item["type"] == "compaction":
        return {"role": "user", "content": told_summary(item["encrypted_content"])}
    if item["type"] == "message":
        content = text_of(item["content"], f"{name}.content", images, unseen)
        return {"role": item["role"], "content": content}
    content = text_of(item["output"], f"{name}.output", images, unseen)
    message = {"role": "tool", "content": content}
    if item["call_id"] is not None:
        message["tool_call_id"] = item["call_id"]
    return message
