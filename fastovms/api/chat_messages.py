"""Checks the messages of a chat, and finds their images."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import orjson

from fastovms.api.body import optional, scan, show, typed, wrong
from fastovms.api.client_request import RequestDocument
from fastovms.api.dialect import Dialect
from fastovms.api.image_parts import (
    IMAGE_PARTS,
    MEDIA_PARTS,
    ImageSource,
    RequestImages,
    UnreadableParts,
    read_image_part,
    unknown_part,
)
from fastovms.errors import InvalidField, MalformedBody
from fastovms.text.output import input_arguments
from fastovms.text.template_messages import PlacedMessage, place_of
from fastovms.text.tool_results import fault_of_results

Message = dict[str, Any]

_TEXT_PARTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of text parts, and the field with the text."""

_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
"""The fields in which clients send reasoning back."""


_RESULTS: Final = ("tool", "function")
"""The roles of messages with tool results."""

_MAX_ROLE: Final = 64
"""The maximum number of characters of a role: templates may write unknown roles into the prompt."""


class ChatMessages(NamedTuple):
    """The messages of a chat in the format of templates.

    Attributes:
        images: the images of the messages; their texts contain a tag for each image.
        warnings: names of the parts that the model cannot read, for a warning.
    """

    messages: list[Message]
    images: Sequence[ImageSource] = ()
    warnings: Sequence[str] = ()


def read_messages(
    given: str | Sequence[Mapping[str, Any]] | None,
    dialect: Dialect,
    images: RequestImages | None = None,
) -> ChatMessages:
    """Returns the messages with their contents as strings; the parts of a list are joined by line
    breaks, as in vLLM and OVMS. A string instead of the list becomes one user message (Runpod).
    Unknown fields are dropped. Media that the model cannot read are replaced by a note, except in
    the last message.

    Raises InvalidField if the messages are missing, empty or of a wrong type, or have parts of
    unknown types. Also raises it if the last message has media that the model cannot read, or the
    id of a tool result is repeated or not a call's.

    Args:
        images: collects the images of the messages; None = the model does not support images.
    """
    if given is None:
        raise InvalidField.about("messages", "is required")
    if not given:
        raise InvalidField.about("messages", "must not be empty")
    if isinstance(given, str):
        if not dialect.takes_text_for_messages:
            raise wrong("messages", "an array", given)
        return ChatMessages([{"role": "user", "content": given}])
    reader = ContentReader(dialect, images)
    messages: list[Message] = []
    for position, message in enumerate(given):
        place = f"messages[{position}]"
        reader.refuses_media = position == len(given) - 1 and message.get("role") not in _RESULTS
        messages.append(PlacedMessage(_message(message, place, reader), place))
    _add_legacy_ids(given, messages)
    if dialect.checks_results:
        check_results(messages, "tool_call_id")
    found = () if images is None else images.sources
    return ChatMessages(messages, found, reader.unseen.warnings)


def check_results(messages: Sequence[Message], member: str) -> None:
    """Raises InvalidField for a tool result whose id is not a call's, or is repeated in the turn.
    `member` is the client's name of the id."""
    fault = fault_of_results(messages)
    if fault is not None:
        index, words = fault
        name = f"{place_of(messages[index], index)}.{member}"
        raise InvalidField.about(name, f"{show(messages[index]['tool_call_id'])} {words}")


def given_documents(given: str | Sequence[Mapping[str, Any]] | None) -> Iterator[RequestDocument]:
    """Yields the files in messages; each is replaced in place by a part with its text. Raises
    InvalidField if a file of the last message is not an object."""
    if given is None or isinstance(given, str):
        return
    for position, message in enumerate(given):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        is_new = position == len(given) - 1 and message.get("role") not in _RESULTS
        for index, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") != "file":
                continue
            place = f"messages[{position}].content[{index}].file"
            if isinstance(members := part.get("file"), dict):
                yield RequestDocument(place, members, is_new, partial(_become_text, part))
            elif is_new:
                raise wrong(place, "an object", members)


def _become_text(part: dict[str, Any], text: str) -> None:
    part.clear()
    part.update(type="text", text=text)


class ContentReader:
    """Converts the contents of messages to strings.

    Args:
        images: collects the images; None = the model does not support images.

    Attributes:
        unseen: collects the media that the model cannot read.
        refuses_media: whether such media in the current message are refused instead of replaced by
            a note.
    """

    def __init__(self, dialect: Dialect, images: RequestImages | None = None) -> None:
        self._dialect = dialect
        self._images = images
        self.unseen = UnreadableParts()
        self.refuses_media = True

    def __call__(self, content: object, name: str) -> str:
        """Returns a content as a string. Raises InvalidField if the content is of a wrong type, has
        parts of unknown types, or has too many images."""
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise wrong(name, "a string or a list of parts", content)
        parts = [self._part(part, f"{name}[{index}]") for index, part in enumerate(content)]
        return join_parts(parts)

    def _part(self, part: object, name: str) -> ContentPart:
        part = typed(part, dict, name)
        kind = typed(part.get("type"), str, f"{name}.type")
        if kind in IMAGE_PARTS and self._images is not None:
            tag = self._images.add(read_image_part(part, name, self._dialect))
            return ContentPart(tag, is_image=True)
        member = _TEXT_PARTS.get(kind)
        if member is None and kind in MEDIA_PARTS and not self.refuses_media:
            inner = part.get(kind)
            title = inner.get("filename") if isinstance(inner, dict) else part.get("filename")
            return ContentPart(self.unseen.note(kind, name, title))
        if member is None:
            raise unknown_part(kind, name, takes_images=self._images is not None)
        text = typed(part.get(member), str, f"{name}.{member}")
        return ContentPart(text)


class ContentPart(NamedTuple):
    """A part of a content: its text, and whether that text is an image tag."""

    text: str
    is_image: bool = False


def join_parts(parts: Sequence[ContentPart]) -> str:
    """Joins the texts by line breaks; image tags stay in their place."""
    joined = "".join(part.text for part in parts[:1])
    for before, part in pairwise(parts):
        joined += part.text if before.is_image or part.is_image else f"\n{part.text}"
    return joined


def _add_legacy_ids(given: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> None:
    """Adds an id to each `function_call` without one, and to the following message with role
    `function`, because some templates need ids."""
    last_id = ""
    for position, (legacy, message) in enumerate(zip(given, messages, strict=True)):
        if legacy.get("tool_calls") is None and legacy.get("function_call") is not None:
            last_id = f"call{position:05d}"
            for call in message.get("tool_calls", ()):
                call["id"] = last_id
        elif legacy["role"] == "function" and last_id:
            message.setdefault("tool_call_id", last_id)


def _message(message: Mapping[str, Any], name: str, read_content: ContentReader) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise wrong(f"{name}.role", "a string", role)
    if len(role) > _MAX_ROLE:
        raise InvalidField.about(
            f"{name}.role", f"must have at most {_MAX_ROLE} characters, not {len(role)}"
        )
    read: Message = {
        "role": "tool" if role == "function" else role,
        "content": read_content(message.get("content"), f"{name}.content"),
    }
    for key in ("name", "tool_call_id"):
        if (value := _string(message, key, name)) is not None:
            read[key] = value
    if role == "assistant":
        _add_answer(read, message, name)
    return read


def _add_answer(read: Message, message: Mapping[str, Any], name: str) -> None:
    """Adds the fields that only assistant messages have."""
    refusal = _string(message, "refusal", name)
    if refusal and not read["content"]:
        read["content"] = refusal
    for key in _REASONING:
        if reasoning := _string(message, key, name):
            read["reasoning_content"] = reasoning
            break
    calls = _calls(message, name)
    if calls:
        read["tool_calls"] = calls
        read["content"] = read["content"] or None  # templates may treat "" differently from None


def _calls(message: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    given = message.get("tool_calls")
    if given is None:
        legacy = message.get("function_call")
        if legacy is None:
            return []
        return [{"type": "function", "function": _function(legacy, f"{name}.function_call")}]
    name = f"{name}.tool_calls"
    given = typed(given, list, name)
    return [_call(call, f"{name}[{index}]") for index, call in enumerate(given)]


def _call(call: object, name: str) -> dict[str, Any]:
    call = typed(call, dict, name)
    kind = call.get("type")
    if kind not in (None, "function", "custom"):
        raise wrong(f"{name}.type", '"function" or "custom"', kind)
    read: dict[str, Any] = {"type": "function"}
    if (call_id := _string(call, "id", name)) is not None:
        read["id"] = call_id
    if kind == "custom":
        return {**read, "function": _custom(call.get("custom"), f"{name}.custom")}
    return {**read, "function": _function(call.get("function"), f"{name}.function")}


def _custom(custom: object, name: str) -> dict[str, Any]:
    """Converts a call of a custom tool to a call of the function that represents it."""
    custom = typed(custom, dict, name)
    called = _called(custom, name)
    text = _string(custom, "input", name) or ""
    return {"name": called, "arguments": input_arguments(text)}


def _function(function: object, name: str) -> dict[str, Any]:
    function = typed(function, dict, name)
    called = _called(function, name)
    arguments = function.get("arguments")
    if not isinstance(arguments, str | dict):
        # Clients repeat what a model wrote, which may be any JSON value.
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return {"name": called, "arguments": arguments or "{}"}


def _called(function: Mapping[str, Any], name: str) -> str:
    called = function.get("name")
    if not isinstance(called, str) or not called:
        raise wrong(f"{name}.name", "a string", called)
    return called


def _string(value: Mapping[str, Any], key: str, name: str) -> str | None:
    return optional(value.get(key), str, f"{name}.{key}")


_SUMMARY: Final = "fastovms-summary-1."
"""The prefix of a sealed summary, which distinguishes it from other servers' data."""

_HISTORY: Final = "fastovms-history-1."
"""The prefix of a sealed summary that contains kept messages."""

_BEFORE_SUMMARY: Final = "Summary of the conversation so far:"


def seal(reasoning: str) -> str:
    """Returns reasoning as `encrypted_content`, for clients that store reasoning without showing
    it."""
    return base64.b64encode(reasoning.encode()).decode()


def unseal(content: str) -> str:
    """Decodes `encrypted_content` to reasoning; "" if another server has created it."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return ""


def seal_summary(summary: str) -> str:
    """Returns the `encrypted_content` of a compaction."""
    return _SUMMARY + seal(summary)


class KeptItems(NamedTuple):
    """The items that an automatic compaction keeps, before and after its summary."""

    before: Sequence[Message] = ()
    after: Sequence[Message] = ()


def seal_history(summary: str, before: Sequence[Message], after: Sequence[Message]) -> str:
    """Returns the `encrypted_content` of an automatic compaction, which replaces all earlier
    items."""
    return _HISTORY + seal(json.dumps([summary, before, after], ensure_ascii=False))


def unseal_summary(content: str) -> str:
    """Decodes the summary in `encrypted_content`; "" if another server has created it."""
    if content.startswith(_HISTORY):
        return _unseal_history(content)[0]
    return unseal(content.removeprefix(_SUMMARY)) if content.startswith(_SUMMARY) else ""


def kept_items(content: str) -> KeptItems | None:
    """Returns the items that an automatic compaction keeps; None = another kind of compaction."""
    return _unseal_history(content)[1] if content.startswith(_HISTORY) else None


def _unseal_history(content: str) -> tuple[str, KeptItems]:
    try:
        data = base64.b64decode(content.removeprefix(_HISTORY), validate=True)
        scan(data)  # clients may send data that this server has not sealed
        summary, before, after = orjson.loads(data)
    except (ValueError, TypeError, MalformedBody):
        return "", KeptItems()
    if not (isinstance(summary, str) and isinstance(before, list) and isinstance(after, list)):
        return "", KeptItems()
    return summary, KeptItems(before, after)


def summary_message(content: str) -> str:
    """Returns the text that presents the summary in `encrypted_content` to the model."""
    return summary_text(unseal_summary(content))


def summary_text(summary: str) -> str:
    """Returns the text that presents a summary to the model."""
    return f"{_BEFORE_SUMMARY}\n{summary}"
