"""Reads image parts of requests, and marks the positions of images in texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fastovms.api.body import show, typed, wrong
from fastovms.api.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.params import Image

_TAG: Final = re.compile(r"<ov_genai_(?:image|video|audio)_(\d*)>?")


class ForbiddenTag(InvalidField):
    """A client's text contains an image tag.

    Attributes:
        tag: the tag.
    """

    tag = ""


def image_tag(index: int) -> str:
    """Returns the tag that represents an image in a prompt. `index` counts the images of a request
    from 0."""
    return f"<ov_genai_image_{index}>"


def without_tags(text: str, num_images: int) -> str:
    """Returns the text without the tags `<ov_genai_image_N>` of its `num_images` images."""
    return _replaced(text, dict.fromkeys(map(image_tag, range(num_images)), ""))


def renumbered(text: str, num_images: int) -> tuple[str, list[int]]:
    """Returns the text with its image tags renumbered from 0, and their previous numbers."""
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
    """Checks that the text has exactly one tag for each image, and no other image tags, which could
    not be distinguished in the prompt. Raises ForbiddenTag if there is another image tag, and
    InvalidField if an image has none.

    Args:
        name: the field of the text.
        reserved: the model's own tags.
        needs_all: whether every image must have a tag.
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
        raise InvalidField(f"{name}: the chat template omits an image", param=name)


def forbidden_tag(tag: str, name: str) -> ForbiddenTag:
    """Returns the error of a client's text that contains an image tag. `name` is the field's
    path."""
    error = ForbiddenTag(f"{name} must not contain {tag}: it stands for an image", param=name)
    error.tag = tag
    return error


class ImageSource(NamedTuple):
    """An image in a request.

    Attributes:
        url: `data:`, `http:` or `https:`, `file:`, or an absolute path.
        name: the request's field with the image, for messages.
        detail: the requested level of detail; ignored by models.
    """

    url: str
    name: str
    detail: str = "auto"


class RequestImages:
    """Collects the images of one request as they are read.

    Args:
        max_images: the maximum number of images; None = checked later, because some may be dropped.

    Attributes:
        sources: the images read so far.
    """

    def __init__(self, max_images: int | None) -> None:
        self._max_images = max_images
        self.sources: list[ImageSource] = []

    def add(self, source: ImageSource) -> str:
        """Adds an image and returns the tag for it in the prompt. Raises InvalidField if there are
        too many images."""
        if self._max_images is not None and len(self.sources) >= self._max_images:
            raise too_many_images(source, self._max_images)
        self.sources.append(source)
        return image_tag(len(self.sources) - 1)


def too_many_images(source: ImageSource, max_images: int) -> InvalidField:
    """Returns the error of the first image beyond the limit."""
    return InvalidField.about(
        source.name, f"is one image too many: a request may have {max_images}"
    )


IMAGE_PARTS: Final = ("image_url", "input_image")
"""The types of image parts, in chats and in the Responses API."""

MEDIA_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*IMAGE_PARTS, "image"), "image"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), "file"),
    **dict.fromkeys(("input_audio", "audio_url"), "audio"),
    "video_url": "video",
}
"""The types of parts with media in all APIs, and a noun for each."""

_MAX_PLACES: Final = 8
"""The maximum number of parts in a warning."""

_MAX_TITLE: Final = 100
"""The maximum number of characters of a file's name in a note."""

_DETAILS: Final = ("auto", "low", "high", "original")


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Loads the images of one model's requests.

    Attributes:
        fetch: returns the images of a request; see `parts.media.loader.ImageLoader.load`.
        max_images: the maximum number of images of a request.
        reserved: the model's image tags.
    """

    fetch: Callable[[Sequence[ImageSource]], Awaitable[list[Image]]]
    max_images: int
    reserved: tuple[str, ...] = ()


def images_of_request(model: ImageInput | None, *, may_drop: bool = False) -> RequestImages | None:
    """Returns an object that collects the images of a request; None = the model does not support
    images. `may_drop` is whether messages may be dropped; images are then counted when they are
    loaded, not when they are read."""
    if model is None:
        return None
    return RequestImages(None if may_drop else model.max_images)


class UnreadableParts:
    """Collects the parts of a chat history that the model cannot read, and returns a note for each.

    Clients send their whole history with every turn: if such parts were refused in old messages,
    every later turn would be refused, too.
    """

    def __init__(self) -> None:
        self._places: list[str] = []

    def note(self, kind: str, name: str, title: object = None) -> str:
        """Returns the text that replaces a part.

        Args:
            kind: the part's type, one of `MEDIA_PARTS`.
            name: its path in the request.
            title: the name of a file; other values are ignored.
        """
        self._places.append(name)
        named = f" {title[:_MAX_TITLE]}" if isinstance(title, str) and title else ""
        return f"[{MEDIA_PARTS[kind]}{named}: this model cannot read it]"

    @property
    def warnings(self) -> Sequence[str]:
        """Returns the message for the client."""
        if not self._places:
            return ()
        listed, more = self._places[:_MAX_PLACES], len(self._places) - _MAX_PLACES
        rest = f" and {more} more" if more > 0 else ""
        return [f"this model cannot read {', '.join(listed)}{rest}: a note takes the place of each"]


def unknown_part(kind: str, name: str, *, takes_images: bool) -> InvalidField:
    """Returns the error for a part of a type that the model does not support."""
    takes = f"only text and parts of type {' or '.join(IMAGE_PARTS)}"
    return InvalidField.about(
        name,
        f"is of type {show(kind)}, but this model takes {takes if takes_images else 'only text'}",
    )


def image_tokens_unknown(image: ImageSource) -> InvalidField:
    """Returns the error for a request that asks for the tokens of a prompt with images."""
    return InvalidField(
        f"{image.name}: the tokens of images are only known when they are read", param=image.name
    )


def read_image_part(part: Mapping[str, Any], name: str, dialect: Dialect) -> ImageSource:
    """Returns the image of a part. Raises InvalidField if the part is malformed."""
    member = f"{name}.image_url"
    found = part.get("image_url")
    if part.get("type") == "input_image" and found is None and part.get("file_id") is not None:
        raise InvalidField.about(f"{name}.file_id", "is not supported: include the data itself")
    url, url_name, detail = found, member, part.get("detail")
    detail_name = f"{name}.detail"
    takes_string = part.get("type") == "input_image" or dialect.takes_image_url_strings
    if isinstance(found, dict):
        url, url_name = found.get("url"), f"{member}.url"
        if "detail" in found:
            detail, detail_name = found["detail"], f"{member}.detail"
    elif not takes_string or not isinstance(found, str):
        words = "an object or a string" if takes_string else "an object"
        raise wrong(member, words, found)
    url = typed(url, str, url_name)
    if not url:
        raise InvalidField.about(url_name, "must not be empty")
    if detail is not None and detail not in _DETAILS:
        raise wrong(detail_name, f"one of {', '.join(_DETAILS)}", detail)
    return ImageSource(url, url_name, detail or "auto")
