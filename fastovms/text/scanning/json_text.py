"""Reads JSON as models write it, with their usual faults mended, while it arrives."""

from __future__ import annotations

import json
import re

from fastovms.text.scanning.literals import Notation, copy_value, to_json
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_CUT_SCALAR = re.compile(
    r"-?|-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]*)?|t(ru?)?|f(a(ls?)?)?|n(ul?)?"
)
_ESCAPED = frozenset('"\\/bfnrt')
_CUT_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{0,3})?")
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9A-Fa-f]{2}")
_BOTH_HALVES = re.compile(r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}")
_CUT_HALVES = re.compile(r"\\u[dD][89abAB][0-9A-Fa-f]{2}(\\(u([dD]([c-fC-F][0-9A-Fa-f]?)?)?)?)?")
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def escape(text: str) -> str:
    """Returns the inside of a JSON string."""
    return _TO_ESCAPE.sub(
        lambda match: _SHORT_ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text
    )


def copy_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Passes on a string as it is generated.

    Three faults of models are mended, since nothing else can be meant: control characters become
    their escapes, a backslash that escapes nothing is doubled, and half of a character becomes the
    one that stands for a fault.
    """
    if not (yield from scan.take('"')):
        return False
    emit('"')
    while True:
        yield from scan.run(_PLAIN, emit)
        char = yield from scan.peek()
        if char == '"':
            emit((yield from scan.read(1)))
            return True
        if char == "\\":
            if not (yield from _copy_escape(scan, emit)):
                return False
        elif char:
            emit(escape((yield from scan.read(1))))
        else:
            return False


def _copy_escape(scan: Scanner, emit: Emit) -> Incremental[bool]:
    following = yield from scan.peek(2)
    if following[1:] == "u":
        following = yield from scan.peek(6)
        is_escape = _HEX.fullmatch(following, 2) is not None
    else:
        is_escape = following[1:] in _ESCAPED
    if not is_escape and scan.is_ended and _CUT_ESCAPE.fullmatch(following):
        emit((yield from scan.read(len(following))))
        return False
    if is_escape and _HALF.fullmatch(following):
        return (yield from copy_half(scan, emit))
    if is_escape:
        emit((yield from scan.read(len(following))))
    else:
        yield from scan.read(1)
        emit("\\\\")
    return True


def copy_half(scan: Scanner, emit: Emit) -> Incremental[bool]:
    r"""Passes on the escape of half of a character (`\ud83d`) with its other half, which is next.
    Where that is missing, the character that stands for a fault is passed on: UTF-8, in which the
    client gets the string, has no halves (RFC 3629, 3), and many readers of JSON take none."""
    halves = yield from scan.peek(12)
    if _BOTH_HALVES.fullmatch(halves):
        emit((yield from scan.read(12)))
        return True
    if scan.is_ended and _CUT_HALVES.fullmatch(halves):
        emit((yield from scan.read(len(halves))))
        return False
    yield from scan.read(6)
    emit("\\ufffd")
    return True


JSON = Notation(
    quotes=('"',),
    copy_string=copy_string,
    copy_key=copy_string,
    convert=lambda word: word if _SCALAR.fullmatch(word) else None,
    convert_cut=lambda word: word if _CUT_SCALAR.fullmatch(word) else None,
    brackets={"{": "}", "[": "]"},
    is_json=True,
)


def copy_json(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Passes on one JSON value, white space included."""
    return (yield from copy_value(scan, emit, JSON))


def read_string(scan: Scanner) -> Incremental[str | None]:
    """Reads a string; None if there is none, or not a whole one."""
    pieces: list[str] = []
    if not (yield from copy_string(scan, pieces.append)):
        return None
    text: str = json.loads("".join(pieces))
    return text


def is_json(text: str) -> bool:
    """Returns whether the text is one JSON value, of any depth."""
    return to_json(text, JSON) == text
