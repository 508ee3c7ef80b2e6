"""Reads what items say: their parts as the text that a model gets, and reasoning sealed for its way
through a client."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from fastovms.api.conversation.chat_messages import ContentPart, join_parts
from fastovms.api.responses.input.input_items import IMAGE, TEXT_PARTS
from fastovms.errors import InvalidField
from fastovms.media.image_tags import image_tag
from fastovms.media.loader import ImageSource


def text_of(
    parts: str | Sequence[Mapping[str, Any]],
    name: str = "input",
    images: list[ImageSource] | None = None,
) -> str:
    """Returns what a template is given of a content that has been read.

    Args:
        name: the content's, for error messages.
        images: those of the content are added to it, and tags stand for them; None = the model
            takes none.

    Raises:
        InvalidField: there is one all the same, which another model was told of.
    """
    if isinstance(parts, str):
        return parts
    read = []
    for position, part in enumerate(parts):
        if part["type"] != IMAGE:
            read.append(ContentPart(part[TEXT_PARTS[part["type"]]]))
            continue
        if images is None:
            raise InvalidField(f"{name} has an image, but this model takes only text", param=name)
        images.append(ImageSource(part["image_url"], f"{name}[{position}].image_url"))
        read.append(ContentPart(image_tag(len(images) - 1), is_image=True))
    return join_parts(read)


def seal(reasoning: str) -> str:
    """Returns reasoning as `encrypted_content`, for clients that keep it and show it to nobody.
    There is no secret in it: the same text is in the item's `content`."""
    return base64.b64encode(reasoning.encode()).decode()


def unseal(content: str) -> str:
    """Returns the text of sealed reasoning; nothing if another server has made it."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return ""
