"""Decodes long strings of a JSON text apart from it: in pieces, since each piece holds the GIL for
as long as it takes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from mmap import mmap
from typing import Any, Final

import msgspec

from fastovms.api.wire.bodies.json_scan import Span, blotted
from fastovms.errors import MalformedBody

MAX_WIDE: Final = 8 * 1024 * 1024
"""The most characters of a string that has some beyond ASCII: joining its pieces takes up to four
bytes for each. Base64 has none."""

_PIECE: Final = 512 * 1024
_ESCAPE: Final = 6
"""How many bytes the longest escape has."""

_WORD = re.compile(r"\w+")
_PLACE = re.compile(r" \(byte \d+\)$")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)


def take_out(text: bytes | mmap, spans: Sequence[Span]) -> tuple[bytes, dict[str, str]]:
    """Returns the text with a short stand-in for each of the strings, and the strings by their
    stand-ins. Nobody can guess those.

    Raises:
        MalformedBody: a string is not JSON, or too long.
    """
    secret = secrets.token_hex(8)
    parts: list[bytes] = []
    strings: dict[str, str] = {}
    at = 0
    for span in spans:
        name = f"{secret}{len(strings)}"
        strings[name] = _decode(text, span)
        parts += (text[at : span.start], name.encode())
        at = span.end
    return b"".join((*parts, text[at:])), strings


def put_back(body: msgspec.Struct, strings: Mapping[str, str]) -> None:
    """Replaces the stand-ins in a body that was decoded just now, which nobody else has."""
    for name in body.__struct_fields__:
        value = getattr(body, name)
        whole = whole_value(value, strings)
        if whole is not value:
            msgspec.structs.force_setattr(body, name, whole)


def whole_value(value: Any, strings: Mapping[str, str]) -> Any:
    """Returns the value with the strings for their stand-ins. Lists, objects and structs are
    changed."""
    kind = type(value)
    if kind is str:
        return strings.get(value, value)
    if kind is list:
        for position, element in enumerate(value):
            if type(element) is not int:
                value[position] = whole_value(element, strings)
    elif kind is dict:
        if not strings.keys().isdisjoint(value):
            return {
                strings.get(key, key): whole_value(member, strings) for key, member in value.items()
            }
        for key, member in value.items():
            value[key] = whole_value(member, strings)
    elif isinstance(value, msgspec.Struct):
        put_back(value, strings)
    return value


def whole_text(text: str, strings: Mapping[str, str], max_length: int) -> str:
    """Returns a text about the body, with the beginnings of the strings for their stand-ins."""

    def whole(word: re.Match[str]) -> str:
        name = word[0]
        return strings[name][:max_length] if name in strings else name

    return _WORD.sub(whole, text)


def without_place(error: msgspec.DecodeError) -> str:
    """Returns what the parser complains about, without the byte: it saw another text than was
    sent."""
    return _PLACE.sub("", str(error))


def _decode(text: bytes | mmap, span: Span) -> str:
    pieces: list[str] = []
    at, is_wide, length = span.start, False, 0
    while at < span.end:
        end = _piece_end(text, at, span.end)
        try:
            piece = msgspec.json.decode(b'"%b"' % text[at:end], type=str)
        except msgspec.DecodeError as error:
            raise MalformedBody(f"the body is not valid JSON: {without_place(error)}") from None
        length += len(piece)
        is_wide = is_wide or not piece.isascii()
        if is_wide and length > MAX_WIDE:
            raise MalformedBody(
                f"the body has a string of more than {MAX_WIDE} characters, not all of them ASCII"
            )
        pieces.append(piece)
        at = end
    return "".join(pieces)


def _piece_end(text: bytes | mmap, at: int, end: int) -> int:
    """Returns where a piece of a string may end that begins at `at`: not within an escape, a
    character, or a pair of escapes that is one character."""
    if end - at <= _PIECE:
        return end
    end = at + _PIECE
    piece = text[at:end]
    if b"\\" in piece:
        piece = blotted(piece)
    last = piece.rfind(b"\\", _PIECE - _ESCAPE)
    if last < 0:
        backs = (back for back in range(4) if text[end - back] & 0xC0 != 0x80)
        return end - next(backs, 0)
    if _HIGH_SURROGATE.match(piece, last - _ESCAPE):
        last -= _ESCAPE
    return at + last
