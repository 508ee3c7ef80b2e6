"""Knows openvino_genai's tags of images: refuses them where clients write them, and checks that
each image stands in its prompt once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
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
    return _replaced(text, dict.fromkeys(map(image_tag, range(num_images)), ""))


def renumbered(text: str, num_images: int) -> tuple[str, list[int]]:
    """Returns the text with tags that count only the images it has, and the numbers that these had
    before."""
    indices = {image_tag(index): index for index in range(num_images)}
    kept = sorted({indices[found[0]] for found in _TAG.finditer(text) if found[0] in indices})
    tags = {image_tag(index): image_tag(position) for position, index in enumerate(kept)}
    return _replaced(text, tags), kept


def _replaced(text: str, tags: Mapping[str, str]) -> str:
    return _TAG.sub(lambda found: tags.get(found[0], found[0]), text)


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
    found = Counter(match[0] for match in _TAG.finditer(text))
    expected = {image_tag(index) for index in range(num_images)}
    for tag, count in found.items():
        if tag not in expected or count > 1:
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
