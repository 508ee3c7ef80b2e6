"""Reads what items say: their parts as the text that a model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastovms.api.conversation.chat_messages import ContentPart, join_parts
from fastovms.api.responses.input.hosted_items import IMAGE
from fastovms.api.responses.input.input_items import TEXT_PARTS
from fastovms.api.serving.images import UnseenParts, unknown_part
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages, ImageSource


def text_of(
    parts: str | Sequence[Mapping[str, Any]],
    name: str = "input",
    images: GivenImages | None = None,
    unseen: UnseenParts | None = None,
) -> str:
    """Returns what a template is given of a content that has been read.

    Args:
        name: the content's, for error messages.
        images: collects those of the content, and tags stand for them; None = the model takes none.
        unseen: collects the media that the model cannot read, and notes stand for them; None =
            they are refused.

    Raises:
        InvalidField: the content has media that the model cannot read, or one image too many.
    """
    if isinstance(parts, str):
        return parts
    read = []
    for position, part in enumerate(parts):
        kind, place = part["type"], f"{name}[{position}]"
        if kind in TEXT_PARTS:
            read.append(ContentPart(part[TEXT_PARTS[kind]]))
        elif kind == IMAGE and images is not None and part.get("image_url"):
            tag = images.add(ImageSource(part["image_url"], f"{place}.image_url"))
            read.append(ContentPart(tag, is_image=True))
        elif unseen is not None:
            read.append(ContentPart(unseen.note(kind, place, part.get("filename"))))
        elif kind == IMAGE and images is not None:
            place = f"{place}.file_id"
            raise InvalidField(f"{place} is not supported: there are no files here", param=place)
        else:
            raise unknown_part(kind, place, takes_images=images is not None)
    return join_parts(read)
