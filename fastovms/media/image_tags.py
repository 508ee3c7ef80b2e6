"""Knows openvino_genai's tags of images: refuses them where clients write them, and checks that
each image stands in its prompt once."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from fastovms.errors import InvalidField

_TAG: Final = re.compile(r"<ov_genai_(?:image|video|audio)_(\d*)>?")


class ForbiddenTag(InvalidField):
    """A client wrote a tag that stands for an image.

    Attributes:
        tag: what it wrote.
    """

    tag = ""


def image_tag(index: int) -> str:
    return f"<ov_genai_image_{index}>"


def without_tags(text: str, num_images: int) -> str:
    """Returns the text without the tags of its images."""
    for index in range(num_images):
        text = text.replace(image_tag(index), "")
    return text


def check_tags(
    text: str,
    num_images: int,
    name: str,
    reserved: Collection[str] = (),
    *,
    needs_all: bool = True,
) -> None:
    """Checks that each image is in the text once, and nothing else that the model would take for
    one: texts of clients, whatever way they took into the prompt, cannot be told from it any more.

    Args:
        name: the field that the text comes from.
        reserved: the model's own tags.
        needs_all: whether an image may not be missing.

    Raises:
        ForbiddenTag: the text has another tag that stands for an image.
        InvalidField: an image is missing.
    """
    found = [match[0] for match in _TAG.finditer(text)]
    expected = [image_tag(index) for index in range(num_images)]
    for tag in found:
        if tag not in expected or found.count(tag) > 1:
            raise forbidden_tag(tag, name)
    for tag in reserved:
        if tag in text:
            raise forbidden_tag(tag, name)
    if needs_all and len(found) < len(expected):
        raise InvalidField(f"{name}: the chat template leaves an image out", param=name)


def forbidden_tag(tag: str, name: str) -> ForbiddenTag:
    error = ForbiddenTag(f"{name} must not contain {tag}: it stands for an image", param=name)
    error.tag = tag
    return error
