"""Reads the blocks that bring text and images, be it to a message, to a result of a tool or to what
the system says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastovms.api.conversation.chat_messages import ContentPart, join_parts
from fastovms.api.serving.images import UnseenParts
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages, ImageSource


class Block(NamedTuple):
    """A block of a content.

    Attributes:
        place: its path in the request.
        is_new: whether the client has not sent it before, so that media that the model cannot read
            are refused.
    """

    members: Mapping[str, Any]
    place: str
    is_new: bool = False

    @property
    def kind(self) -> str:
        return str(self.members["type"])

    def wrong(self, key: str, words: str) -> InvalidField:
        """Returns the fault of a member."""
        name = f"{self.place}.{key}"
        message = f"{name} must be {words}, not {show(self.members.get(key))}"
        return InvalidField(message, param=name)

    def text(self, key: str) -> str:
        """Returns a member that must be a string. Raises InvalidField."""
        value = self.members.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def filled_text(self, key: str) -> str:
        """Returns a member that must be a string with something in it. Raises InvalidField."""
        if not (text := self.text(key)):
            raise self.wrong(key, "a string that is not empty")
        return text

    def object(self, key: str) -> Mapping[str, Any]:
        """Returns a member that must be an object. Raises InvalidField."""
        value = self.members.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value


def read_blocks(content: object, place: str, *, is_new: bool = False) -> list[Block]:
    """Returns the blocks of a content; a text is one of its own.

    Args:
        is_new: whether the client has not sent the content before.

    Raises:
        InvalidField: it is neither a text nor a list of objects that have a type.
    """
    if isinstance(content, str):
        return [Block({"type": "text", "text": content}, place)]
    if not isinstance(content, list):
        words = "a string or a list of blocks"
        raise InvalidField(f"{place} must be {words}, not {show(content)}", param=place)
    blocks = []
    for position, members in enumerate(content):
        block = Block(members, f"{place}[{position}]", is_new)
        if not isinstance(members, dict):
            message = f"{block.place} must be an object, not {show(members)}"
            raise InvalidField(message, param=block.place)
        block.text("type")
        blocks.append(block)
    return blocks


class BlockReader:
    """Makes text of blocks.

    Args:
        images: collects those of the blocks, in whose text tags stand for them; None = the model
            takes none.

    Attributes:
        unseen: collects the media that the model cannot read.
    """

    def __init__(self, images: GivenImages | None = None) -> None:
        self._images = images
        self.unseen = UnseenParts()

    def __call__(self, blocks: Sequence[Block]) -> str:
        """Returns the text of blocks.

        Raises:
            InvalidField: a block is malformed, of a type that is not taken there, or one image too
                many.
        """
        return join_parts([part for block in blocks for part in self._parts(block)])

    def _parts(self, block: Block) -> list[ContentPart]:
        if block.kind == "image" and self._images is not None:
            return [self._image(block, self._images)]
        if block.kind in ("image", "container_upload"):
            return [self._unseen(block)]
        read = _READERS.get(block.kind)
        if read is None:
            raise unknown_block(block, _READERS, takes_images=self._images is not None)
        return read(self, block)

    def _unseen(self, block: Block) -> ContentPart:
        """Returns the note for a block that the model cannot read. Raises InvalidField."""
        if block.is_new:
            raise unknown_block(block, _READERS, takes_images=self._images is not None)
        return ContentPart(self.unseen.note(block.kind, block.place, block.members.get("title")))

    def _image(self, block: Block, images: GivenImages) -> ContentPart:
        source = Block(block.object("source"), f"{block.place}.source")
        kind = source.text("type")
        if kind == "base64":
            media_type, key = source.filled_text("media_type"), "data"
            url = f"data:{media_type};base64,{source.filled_text(key)}"
        elif kind == "url":
            key = "url"
            url = source.filled_text(key)
        else:
            raise source.wrong("type", '"base64" or "url"')
        tag = images.add(ImageSource(url, f"{source.place}.{key}", "auto"))
        return ContentPart(tag, is_image=True)

    def _document(self, block: Block) -> list[ContentPart]:
        """Reads a document: its title and context go before its text. The model reads no PDF."""
        source = Block(block.object("source"), f"{block.place}.source")
        heads = [
            ContentPart(block.text(key))
            for key in ("title", "context")
            if block.members.get(key) is not None
        ]
        kind = source.text("type")
        if kind == "text":
            return [*heads, ContentPart(source.text("data"))]
        if kind == "content":
            given = source.members.get("content")
            inner = read_blocks(given, f"{source.place}.content", is_new=block.is_new)
            return heads + [part for each in inner for part in self._parts(each)]
        if kind in _FILES and not block.is_new:
            return [self._unseen(block)]
        raise source.wrong("type", '"text" or "content", which hold text')

    def _tool_reference(self, block: Block) -> list[ContentPart]:
        """Reads what a search for tools has found: the model knows the tool by its name."""
        return [ContentPart(block.filled_text("tool_name"))]

    def _browser_state(self, block: Block) -> list[ContentPart]:
        state = {key: block.members.get(key) for key in ("tabs", "state_changes")}
        return [ContentPart(json.dumps(state, ensure_ascii=False))]

    def _search_result(self, block: Block) -> list[ContentPart]:
        inner = read_blocks(block.members.get("content"), f"{block.place}.content")
        heads = [ContentPart(block.text("title")), ContentPart(block.text("source"))]
        return heads + [part for each in inner for part in self._parts(each)]


_READERS: Final[Mapping[str, Callable[[BlockReader, Block], list[ContentPart]]]] = {
    "text": lambda reader, block: [ContentPart(block.text("text"))],
    "document": BlockReader._document,
    "search_result": BlockReader._search_result,
    "tool_reference": BlockReader._tool_reference,
    "browser_state": BlockReader._browser_state,
}
"""What reads each type of block, but images and files."""

_FILES: Final = ("base64", "url", "file")
"""The types of sources of documents that are no text."""


def unknown_block(
    block: Block, taken: Mapping[str, object], *, takes_images: bool = False
) -> InvalidField:
    """Returns the fault of a block of a type that is not taken where it stands."""
    kinds = ", ".join([*taken, *(["image"] if takes_images else [])])
    return InvalidField(
        f"{block.place} is of type {show(block.kind)}, but this model takes only {kinds} there",
        param=block.place,
    )
