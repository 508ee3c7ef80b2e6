"""Reads what items say: their parts as the text that a model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastovms.api.conversation.chat_messages import ContentPart, join_parts
from fastovms.api.responses.input.input_items import IMAGE, TEXT_PARTS
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages, ImageSource


def text_of(
    parts: str | Sequence[Mapping[str, Any]],
    name: str = "input",
    images: GivenImages | None = None,
) -> str:
    """Returns what a template is given of a content that has been read.

    Args:
        name: the content's, for error messages.
        images: collects those of the content, and tags stand for them; None = the model takes none.

    Raises:
        InvalidField: there is one all the same, which another model was told of, or one too many.
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
        tag = images.add(ImageSource(part["image_url"], f"{name}[{position}].image_url"))
        read.append(ContentPart(tag, is_image=True))
    return join_parts(read)
