"""Images in requests: the parts that bring them, and whose tags stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from fastovms.api.body import show
from fastovms.api.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.media.loader import ImageLoader, ImageSource
from fastovms.params import ModelInfo
from fastovms.text.tokenizer import Tokenizer

IMAGE_PARTS: Final = ("image_url", "input_image")
"""Types of parts that bring an image, in chats and in responses."""

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
)
"""Where config.json names the tokens that stand for images and the like."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How one model gets its images.

    Attributes:
        reserved: the texts of its own that stand for images.
    """

    loader: ImageLoader
    reserved: tuple[str, ...]

    @classmethod
    def of(cls, model: ModelInfo, tokenizer: Tokenizer, loader: ImageLoader) -> Self:
        ids = [value for key in _TAG_KEYS if type(value := model.config.get(key)) is int]
        texts = (tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids)
        return cls(loader, tuple(text for text in dict.fromkeys(texts) if text.strip()))


def read_image_part(part: Mapping[str, Any], name: str, dialect: Dialect) -> ImageSource:
    """Where a part's image is. Raises InvalidField."""
    member = f"{name}.image_url"
    found = part.get("image_url")
    if part.get("type") == "input_image" and found is None and part.get("file_id") is not None:
        raise InvalidField(
            f"{name}.file_id is not supported: there are no files here", param=f"{name}.file_id"
        )
    url, url_name, detail = found, member, part.get("detail")
    takes_string = part.get("type") == "input_image" or dialect.takes_image_url_strings
    if isinstance(found, dict):
        url, url_name, detail = found.get("url"), f"{member}.url", found.get("detail", detail)
    elif not takes_string or not isinstance(found, str):
        words = "an object or a string" if takes_string else "an object"
        raise InvalidField(f"{member} must be {words}, not {show(found)}", param=member)
    if not isinstance(url, str) or not url:
        raise InvalidField(f"{url_name} must be a string, not {show(url)}", param=url_name)
    if detail is not None and detail not in _DETAILS:
        raise InvalidField(
            f"{name}: detail must be one of {', '.join(_DETAILS)}, not {show(detail)}", param=name
        )
    return ImageSource(url, url_name, detail or "auto")
