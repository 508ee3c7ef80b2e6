"""Puts the messages of Ollama's clients into the one form that templates get: with images as base64
beside the text, calls without ids, and results that name their tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms.api.conversation.chat_messages import ChatMessages, Message, read_messages
from fastovms.api.serving.images import UnseenParts
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages, ImageSource

_ANY_IMAGE: Final = "data:image/*;base64,"
"""What stands before an image's base64 in a URL. What kind of image it is, its bytes say."""


def read_ollama_messages(
    given: Sequence[Mapping[str, Any]], dialect: Dialect, images: GivenImages | None = None
) -> ChatMessages:
    """Returns the messages, with a tag for each image before the text of its message. If the model
    takes no images, a note takes the place of those of earlier messages and of results of tools.

    Args:
        images: collects those of the messages; None = the model takes none.

    Raises:
        InvalidField: one is malformed, or the last one brings an image to a model that takes none,
            or an image is one too many.
    """
    messages = read_messages([_without_type(message) for message in given], dialect).messages
    _link_results(given, messages)
    unseen = UnseenParts()
    for position, (message, read) in enumerate(zip(given, messages, strict=True)):
        name = f"messages[{position}].images"
        found = message.get("images")
        if found is not None and not isinstance(found, list):
            raise InvalidField(f"{name} must be a list of base64, not {show(found)}", param=name)
        is_history = position < len(given) - 1 or read["role"] == "tool"
        if images is None and is_history:
            notes = [unseen.note("image", f"{name}[{index}]") for index in range(len(found or ()))]
            read["content"] = "\n".join(filter(None, (*notes, read["content"])))
        else:
            add_images(read, found or (), name, images)
    return ChatMessages(messages, () if images is None else images.sources, unseen.warnings)


def add_images(
    message: Message, given: Sequence[object], name: str, images: GivenImages | None
) -> None:
    """Adds the images of a message to those before it, and their tags to its text.

    Args:
        name: the field that they are in.
        images: those before it; None = the model takes none.

    Raises:
        InvalidField: one is no text, or one too many, or the model takes none.
    """
    if not given:
        return
    if images is None:
        raise InvalidField(f"{name}: this model takes no images", param=name)
    tags = ""
    for index, image in enumerate(given):
        place = f"{name}[{index}]"
        if not isinstance(image, str) or not image:
            raise InvalidField(f"{place} must be base64, not {show(image)}", param=place)
        # Some clients send a URL of the same.
        url = image if image.startswith("data:") else _ANY_IMAGE + image
        tags += images.add(ImageSource(url, place))
    message["content"] = tags + (message["content"] or "")


def _without_type(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a message as OpenAI's clients send it: `tool_name` is the name of who speaks."""
    name = message.get("tool_name")
    return {**message, "name": name} if name is not None else message


def _link_results(given: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> None:
    """Gives each call that has no id one, and the result behind it the same: some templates need
    ids. Results come in the order of the calls, or name their tool."""
    waiting: list[tuple[str, str]] = []
    count = 0
    for message, read in zip(given, messages, strict=True):
        calls = read.get("tool_calls", ())
        if calls:
            waiting = []
        for call in calls:
            call.setdefault("id", f"call{count:05d}")
            count += 1
            waiting.append((call["function"]["name"], call["id"]))
        if read["role"] != "tool" or not waiting:
            continue
        name, call_id = message.get("tool_name"), read.get("tool_call_id")
        chosen = next((each for each in waiting if call_id == each[1]), None)
        chosen = chosen or next((each for each in waiting if name == each[0]), waiting[0])
        waiting.remove(chosen)
        read.setdefault("name", chosen[0])
        read.setdefault("tool_call_id", chosen[1])
