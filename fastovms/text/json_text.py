"""JSON that is passed on while it is read: what has been passed on can always become valid."""

from __future__ import annotations

import re

from fastovms.text.scanner import Emit, Scanner, Steps

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = re.compile(r"[ \t\n\r]+")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_CUT_SCALAR = re.compile(
    r"-?|-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]*)?|t(ru?)?|f(a(ls?)?)?|n(ul?)?"
)
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_CLOSERS = {"{": "}", "[": "]"}


def copy_value(scan: Scanner, emit: Emit) -> Steps[bool]:
    """Passes on one value, a string as it is generated, and says whether it was a whole one.

    Stops before the first character that no valid JSON has there, which is then next to be read.
    Two faults of models are mended, since nothing else can be meant: control characters in a
    string become their escapes, and a backslash that escapes nothing is doubled.
    """
    closers: list[str] = []
    while True:
        if not (yield from _copy_opening(scan, emit, closers)):
            return False
        while True:  # behind a value
            if not closers:
                return True
            yield from scan.run(_SPACE, emit)
            char = yield from scan.peek()
            if char == closers[-1]:
                emit((yield from scan.read(1)))
                closers.pop()
            elif char == ",":
                emit((yield from scan.read(1)))
                if closers[-1] == "}" and not (yield from _copy_key(scan, emit)):
                    return False
                break
            else:
                return False


def _copy_opening(scan: Scanner, emit: Emit, closers: list[str]) -> Steps[bool]:
    """A scalar or an empty container, or the beginning of containers down to the first value of
    the innermost, which then ends here."""
    while True:
        yield from scan.run(_SPACE, emit)
        char = yield from scan.peek()
        if char == '"':
            return (yield from copy_string(scan, emit))
        if char not in _CLOSERS:
            return (yield from _copy_scalar(scan, emit))
        emit((yield from scan.read(1)))
        yield from scan.run(_SPACE, emit)
        closer = _CLOSERS[char]
        if (yield from scan.take(closer)):
            emit(closer)
            return True
        closers.append(closer)
        if closer == "}" and not (yield from _copy_key(scan, emit)):
            return False


def _copy_key(scan: Scanner, emit: Emit) -> Steps[bool]:
    yield from scan.run(_SPACE, emit)
    if (yield from scan.peek()) != '"' or not (yield from copy_string(scan, emit)):
        return False
    yield from scan.run(_SPACE, emit)
    if not (yield from scan.take(":")):
        return False
    emit(":")
    return True


def copy_string(scan: Scanner, emit: Emit) -> Steps[bool]:
    """Passes on a string with its quotes; the first one is next."""
    emit((yield from scan.read(1)))
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
            emit(escape_control((yield from scan.read(1))))
        else:
            return False


def escape_control(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, f"\\u{ord(char):04x}")


def _copy_escape(scan: Scanner, emit: Emit) -> Steps[bool]:
    escape = yield from scan.peek(2)
    if len(escape) < 2:
        return False
    if escape[1] == "u":
        code = yield from scan.peek(6)
        if _HEX.fullmatch(code, 2):
            emit((yield from scan.read(6)))
            return True
    elif escape[1] in '"\\/bfnrt':
        emit((yield from scan.read(2)))
        return True
    yield from scan.read(1)
    emit("\\\\")
    return True


def _copy_scalar(scan: Scanner, emit: Emit) -> Steps[bool]:
    """A number or a name, which is passed on whole. One that the end has cut is passed on too."""
    pieces: list[str] = []
    yield from scan.run(_WORD, pieces.append)
    word = "".join(pieces)
    is_whole = _SCALAR.fullmatch(word) is not None
    if is_whole or (scan.is_ended and not (yield from scan.peek()) and _CUT_SCALAR.fullmatch(word)):
        emit(word)
        return is_whole
    scan.put_back(word)
    return False
