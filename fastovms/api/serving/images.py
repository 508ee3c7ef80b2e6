"""Reads the parts of requests that bring images, and finds a model's own tokens that stand for
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.media.decode import PixelBound
from fastovms.media.loader import GivenImages, ImageLoader, ImageSource
from fastovms.params import Image, ModelInfo
from fastovms.text.tokens.tokenizer import Tokenizer

IMAGE_PARTS: Final = ("image_url", "input_image")
"""Types of parts that bring an image, in chats and in responses."""

MEDIA_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*IMAGE_PARTS, "image"), "image"),
    **dict.fromkeys(("file", "input_file", "document", "container_upload"), "file"),
    **dict.fromkeys(("input_audio", "audio_url"), "audio"),
    "video_url": "video",
}
"""Types of parts of all APIs that bring more than text, with a word for it."""

_MAX_PLACES: Final = 8
"""How many parts a warning lists."""

_MAX_TITLE: Final = 100
"""How many characters of a file's name a note has."""

_DETAILS: Final = ("auto", "low", "high", "original")

_TAG_KEYS: Final = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
"""Keys of config.json that name the tokens that stand for images and the like, or enclose them."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How one model gets its images.

    Attributes:
        reserved: the model's own texts that stand for images.
        bound: the size to which a larger image is shrunk; None = `--shrink-images-to`.
    """

    loader: ImageLoader
    reserved: tuple[str, ...]
    bound: PixelBound | None = None

    @classmethod
    def of(
        cls,
        model: ModelInfo,
        tokenizer: Tokenizer,
        loader: ImageLoader,
        processor: Mapping[str, Any],
    ) -> Self:
        """
        Args:
            processor: the model's preprocessor_config.json.
        """
        ids = [value for key in _TAG_KEYS if type(value := model.config.get(key)) is int]
        texts = (tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids)
        reserved = tuple(text for text in dict.fromkeys(texts) if text.strip())
        return cls(loader, reserved, loader.bound(processor))

    async def load(self, sources: Sequence[ImageSource]) -> list[Image]:
        """Returns the images of a request; see `ImageLoader.load`."""
        return await self.loader.load(sources, self.bound)


def images_of_request(model: ImageInput | None, *, may_drop: bool = False) -> GivenImages | None:
    """Returns what collects the images of a request; None = the model takes none.

    Args:
        may_drop: whether the request may be left without some of its messages: then images are
            counted when they are loaded.
    """
    if model is None:
        return None
    return GivenImages(None if may_drop else model.loader.max_images)


class UnseenParts:
    """Collects the parts of one history that the model cannot read, and writes a note for each.

    Clients send their whole history with every turn: if such a part were refused there, every
    later turn would be refused too.
    """

    def __init__(self) -> None:
        self._places: list[str] = []

    def note(self, kind: str, name: str, title: object = None) -> str:
        """Returns the text that stands in a part's place.

        Args:
            kind: the part's type, one of `MEDIA_PARTS`.
            name: its place in the request.
            title: the name of a file; other values are ignored.
        """
        self._places.append(name)
        named = f" {title[:_MAX_TITLE]}" if isinstance(title, str) and title else ""
        return f"[{MEDIA_PARTS[kind]}{named}: this model cannot read it]"

    @property
    def warnings(self) -> Sequence[str]:
        """What to tell the client."""
        if not self._places:
            return ()
        listed, more = self._places[:_MAX_PLACES], len(self._places) - _MAX_PLACES
        rest = f" and {more} more" if more > 0 else ""
        return [f"this model cannot read {', '.join(listed)}{rest}: a note takes the place of each"]


def unknown_part(kind: str, name: str, *, takes_images: bool) -> InvalidField:
    """Returns the error about a part of a type that the model does not take."""
    takes = f"only text and parts of type {' or '.join(IMAGE_PARTS)}"
    return InvalidField(
        f"{name} is of type {show(kind)}, but this model takes "
        f"{takes if takes_images else 'only text'}",
        param=name,
    )


def image_tokens_unknown(image: ImageSource) -> InvalidField:
    """Returns the error about a prompt with an image of which tokens are asked for."""
    return InvalidField(
        f"{image.name}: the tokens of images are only known when they are read", param=image.name
    )


def read_image_part(part: Mapping[str, Any], name: str, dialect: Dialect) -> ImageSource:
    """Returns where a part's image is.

    Raises:
        InvalidField: the part is malformed.
    """
    member = f"{name}.image_url"
    found = part.get("image_url")
    if part.get("type") == "input_image" and found is None and part.get("file_id") is not None:
        raise InvalidField(
            f"{name}.file_id is not supported: there are no files here", param=f"{name}.file_id"
        )
    url, url_name, detail = found, member, part.get("detail")
    detail_name = f"{name}.detail"
    takes_string = part.get("type") == "input_image" or dialect.takes_image_url_strings
    if isinstance(found, dict):
        url, url_name = found.get("url"), f"{member}.url"
        if "detail" in found:
            detail, detail_name = found["detail"], f"{member}.detail"
    elif not takes_string or not isinstance(found, str):
        words = "an object or a string" if takes_string else "an object"
        raise InvalidField(f"{member} must be {words}, not {show(found)}", param=member)
    if not isinstance(url, str):
        raise InvalidField(f"{url_name} must be a string, not {show(url)}", param=url_name)
    if not url:
        raise InvalidField(f"{url_name} must not be empty", param=url_name)
    if detail is not None and detail not in _DETAILS:
        raise InvalidField(
            f"{detail_name} must be one of {', '.join(_DETAILS)}, not {show(detail)}",
            param=detail_name,
        )
    return ImageSource(url, url_name, detail or "auto")
