"""Reads literals of Python as models write them, and passes them on as JSON."""

from __future__ import annotations

import json
import math
import re

from fastovms.text.scanning.json_text import copy_half, escape
from fastovms.text.scanning.literals import Notation, copy_value
from fastovms.text.scanning.scanner import Emit, Incremental, Scanner

_PLAIN = {quote: re.compile(rf"[^{quote}\\\n]+") for quote in "'\""}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CUT_NUMBER = re.compile(r"-?|-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]*)?")
_NAMES = {"True": "true", "False": "false", "None": "null"}
_NAMES |= {name: name for name in _NAMES.values()}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\\": "\\",
    "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_CODE_LENGTHS = {"x": 2, "u": 4, "U": 8}


def copy_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Passes on a string of either quote as a JSON string, as it is generated."""
    quote = yield from scan.peek()
    if quote not in _PLAIN:
        return False
    yield from scan.read(1)
    emit('"')
    while True:
        yield from scan.run(_PLAIN[quote], lambda text: emit(escape(text)))
        char = yield from scan.peek()
        if char == quote:
            yield from scan.read(1)
            emit('"')
            return True
        if char == "\\":
            if not (yield from _copy_escape(scan, emit)):
                return False
        elif char:
            emit(escape((yield from scan.read(1))))  # a line break, which Python does not allow
        else:
            return False


def _copy_escape(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Passes on an escape. What is no escape stands for itself, its backslash included."""
    following = yield from scan.peek(2)
    if len(following) < 2:
        yield from scan.read(1)
        return False
    length = _CODE_LENGTHS.get(following[1])
    if length is not None:
        code = yield from scan.peek(2 + length)
        digits = code[2:]
        if len(digits) == length and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            value = int(digits, 16)
            is_half = 0xD800 <= value <= 0xDFFF
            if is_half and length == _CODE_LENGTHS["u"]:
                # Python knows no pairs of escapes, but models write them, as in JSON.
                return (yield from copy_half(scan, emit))
            if value <= 0x10FFFF:
                yield from scan.read(2 + length)
                emit(json.dumps("\ufffd" if is_half else chr(value))[1:-1])
                return True
        if scan.is_ended and len(digits) < length:
            yield from scan.read(len(code))
            return False
    elif following[1] in _ESCAPES:
        yield from scan.read(2)
        emit(escape(_ESCAPES[following[1]]))
        return True
    yield from scan.read(1)
    emit("\\\\")
    return True


def _convert(word: str) -> str | None:
    if _JSON_NUMBER.fullmatch(word):
        return word
    if _NUMBER.fullmatch(word):
        digits = word.replace("_", "").removeprefix("+")
        if digits.lstrip("-").isdigit():
            return digits[: digits.startswith("-")] + (digits.lstrip("-0") or "0")
        number = float(digits)
        return json.dumps(number) if math.isfinite(number) else None
    return _NAMES.get(word)


def _convert_cut(word: str) -> str | None:
    if _CUT_NUMBER.fullmatch(word):
        return word
    return next((value[: len(word)] for n, value in _NAMES.items() if n.startswith(word)), None)


PYTHON = Notation(
    quotes=("'", '"'),
    copy_string=copy_string,
    copy_key=copy_string,
    convert=_convert,
    convert_cut=_convert_cut,
    brackets={"{": "}", "[": "]", "(": ")"},
)


def copy_python(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Passes on one literal as JSON."""
    return (yield from copy_value(scan, emit, PYTHON))
