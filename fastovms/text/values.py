"""Parses values in calls, in JSON or Python notation, incrementally."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fastovms.text.parameters import ANY_TYPE, Parameter
from fastovms.text.scanning import Emit, Incremental, Scanner

_SPACE = re.compile(r"[ \t\n\r]+")
_WORD = re.compile(r"[-+.\w]+", re.ASCII)

Copy = Callable[[Scanner, Emit], Incremental[bool]]
"""Reads a value and emits it as JSON. Returns False if there is no value, or it is incomplete."""


@dataclass(frozen=True, slots=True)
class Notation:
    """A model's notation of values.

    Attributes:
        quotes: the quotes that begin strings.
        copy_string: reads and emits a string, beginning with its quote.
        copy_key: reads and emits the key of an object.
        convert: converts a number or a name to JSON; None = neither.
        convert_cut: the same for text cut by the end of the answer.
        brackets: the brackets of arrays and objects.
        is_json: whether the notation is JSON: white space is kept, and trailing commas are not
            allowed.
        bare_ends: the characters that end an unquoted string; "" = strings must be quoted.
    """

    quotes: tuple[str, ...]
    copy_string: Copy
    copy_key: Copy
    convert: Callable[[str], str | None]
    convert_cut: Callable[[str], str | None]
    brackets: Mapping[str, str]
    is_json: bool = False
    bare_ends: tuple[str, ...] = ()


def copy_value(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    """Reads one value and emits it as JSON, strings as they arrive. Returns whether it was
    complete.

    The JSON emitted so far can always be completed. Reading stops before the first character that
    the notation does not allow there.
    """
    closers: list[str] = []
    while True:
        if not (yield from _copy_opening(scan, emit, notation, closers)):
            return False
        while True:
            if not closers:
                return True
            yield from copy_space(scan, emit, notation)
            if (yield from scan.take(closers[-1])):
                emit(_json_bracket(closers.pop()))
                continue
            if not (yield from scan.take(",")):
                return False
            if not notation.is_json:
                yield from scan.space()
                if (yield from scan.peek()) == closers[-1]:
                    continue
            emit(",")
            if closers[-1] == "}" and not (yield from _copy_key(scan, emit, notation)):
                return False
            break


def copy_space(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[None]:
    """Emits JSON's white space; skips white space in other notations."""
    if notation.is_json:
        yield from scan.run(_SPACE, emit)
    else:
        yield from scan.space()


def _copy_opening(
    scan: Scanner, emit: Emit, notation: Notation, closers: list[str]
) -> Incremental[bool]:
    """Emits a scalar, an empty container, or the opening of nested containers up to the first value
    of the innermost one."""
    while True:
        yield from copy_space(scan, emit, notation)
        if (yield from starts_string(scan, notation)):
            return (yield from notation.copy_string(scan, emit))
        char = yield from scan.peek()
        if char not in notation.brackets or not char:
            return (yield from _copy_scalar(scan, emit, notation))
        yield from scan.read(1)
        closer = notation.brackets[char]
        emit("{" if closer == "}" else "[")
        yield from copy_space(scan, emit, notation)
        if (yield from scan.take(closer)):
            emit(_json_bracket(closer))
            return True
        closers.append(closer)
        if closer == "}" and not (yield from _copy_key(scan, emit, notation)):
            return False


def starts_string(scan: Scanner, notation: Notation) -> Incremental[bool]:
    """Returns whether an opening quote follows, without reading it."""
    return (yield from scan.starts(*notation.quotes))


def _json_bracket(closer: str) -> str:
    return "}" if closer == "}" else "]"


def _copy_key(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    yield from copy_space(scan, emit, notation)
    if not (yield from notation.copy_key(scan, emit)):
        return False
    yield from copy_space(scan, emit, notation)
    if not (yield from scan.take(":")):
        return False
    emit(":")
    return True


def _copy_scalar(scan: Scanner, emit: Emit, notation: Notation) -> Incremental[bool]:
    """Emits a number or a name when complete, or cut at the end of the text."""
    if notation.bare_ends:
        return (yield from copy_bare(scan, emit, notation))
    word = yield from read_word(scan)
    converted = notation.convert(word)
    is_at_end = scan.is_ended and not (yield from scan.peek())
    if converted is None and is_at_end and (cut := notation.convert_cut(word)) is not None:
        emit(cut)
        return False
    if converted is None:
        scan.put_back(word)
        return False
    emit(converted)
    return True


def copy_bare(
    scan: Scanner, emit: Emit, notation: Notation, *, is_text: bool = False
) -> Incremental[bool]:
    """Emits an unquoted scalar (a number, a name or a string) as JSON. It extends to the first of
    `notation.bare_ends`. `is_text` is whether it is always a string."""
    pieces: list[str] = []
    end = yield from scan.until(notation.bare_ends, pieces.append)
    word = "".join(pieces).strip()
    if end is None:
        cut = None if is_text else notation.convert_cut(word)
        emit(json.dumps(word, ensure_ascii=False)[:-1] if cut is None else cut)
        return False
    scan.put_back(end)
    converted = None if is_text else notation.convert(word)
    emit(json.dumps(word, ensure_ascii=False) if converted is None else converted)
    return True


def read_word(scan: Scanner) -> Incremental[str]:
    """Reads the characters of numbers and names; "" = none."""
    pieces: list[str] = []
    yield from scan.run(_WORD, pieces.append)
    return "".join(pieces)


def to_json(text: str, notation: Notation) -> str | None:
    """Converts a text that is exactly one value to JSON; None = not a value."""
    converted, is_whole = _read_all(text, notation)
    return converted if is_whole else None


def beginning_of_json(text: str) -> str | None:
    """Returns the JSON parsed from a text that is the beginning of a JSON value; None = it is
    not."""
    return _read_all(text, JSON)[0]


def _read_all(text: str, notation: Notation) -> tuple[str | None, bool]:
    """Returns a value, or the beginning of one, as JSON, and whether it is complete; None = the
    text is not a value."""
    scan = Scanner()
    scan.feed(text)
    scan.end(is_cut=False)
    pieces: list[str] = []
    copying = copy_value(scan, pieces.append, notation)
    while True:
        try:
            next(copying)
        except StopIteration as end:
            return ("".join(pieces), end.value) if scan.is_empty else (None, False)


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
    """Returns a string with JSON escapes, without quotes."""
    return _TO_ESCAPE.sub(
        lambda match: _SHORT_ESCAPES.get(match[0], f"\\u{ord(match[0]):04x}"), text
    )


def copy_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Reads and emits a string as it arrives.

    Three errors of models are corrected: control characters are escaped, a backslash without a
    valid escape is doubled, and a lone surrogate becomes U+FFFD.
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
        return (yield from copy_surrogate(scan, emit))
    if is_escape:
        emit((yield from scan.read(len(following))))
    else:
        yield from scan.read(1)
        emit("\\\\")
    return True


def copy_surrogate(scan: Scanner, emit: Emit) -> Incremental[bool]:
    r"""Emits a surrogate escape (`\ud83d`) together with the other surrogate, which must come next.
    A lone surrogate becomes U+FFFD, because UTF-8 cannot encode it (RFC 3629, 3) and many JSON
    readers refuse it."""
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
    """Reads and emits one JSON value, including white space."""
    return (yield from copy_value(scan, emit, JSON))


def read_string(scan: Scanner) -> Incremental[str | None]:
    """Reads a string; None = no complete string."""
    pieces: list[str] = []
    if not (yield from copy_string(scan, pieces.append)):
        return None
    text: str = json.loads("".join(pieces))
    return text


def is_json(text: str) -> bool:
    """Returns whether the text is one JSON value, of any depth."""
    return to_json(text, JSON) == text


_PYTHON_PLAIN = {quote: re.compile(rf"[^{quote}\\\n]+") for quote in "'\""}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?", re.ASCII)
_LIKE_NUMBER = re.compile(r"[-+.]*\d")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CUT_NUMBER = re.compile(r"-?|-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]*)?")
_NAMES = {"True": "true", "False": "false", "None": "null"}
_NAMES |= {name: name for name in _NAMES.values()}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\\": "\\",
    "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_CODE_LENGTHS = {"x": 2, "u": 4, "U": 8}


def copy_python_string(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Reads a string with either quote and emits it as a JSON string as it arrives."""
    quote = yield from scan.peek()
    if quote not in _PYTHON_PLAIN:
        return False
    yield from scan.read(1)
    emit('"')
    while True:
        yield from scan.run(_PYTHON_PLAIN[quote], lambda text: emit(escape(text)))
        char = yield from scan.peek()
        if char == quote:
            yield from scan.read(1)
            emit('"')
            return True
        if char == "\\":
            if not (yield from _copy_python_escape(scan, emit)):
                return False
        elif char:
            emit(escape((yield from scan.read(1))))  # a line break, which Python does not allow
        else:
            return False


def _copy_python_escape(scan: Scanner, emit: Emit) -> Incremental[bool]:
    """Emits an escape as JSON. An invalid escape is kept with its backslash."""
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
                # Python has no surrogate pairs of escapes, but models write them, as in JSON.
                return (yield from copy_surrogate(scan, emit))
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
    """Returns a name or a number as JSON; None = neither. Text such as a phone number (`+1555`) or
    a code (`007`) becomes a string, because a number would lose characters."""
    if _JSON_NUMBER.fullmatch(word) and math.isfinite(float(word)):
        return word
    return _quoted(word) if _LIKE_NUMBER.match(word) else _NAMES.get(word)


def _quoted(text: str) -> str:
    return f'"{escape(text)}"'


def _number(word: str) -> str | None:
    """Returns a number in Python's notation, or with leading zeros, as JSON; None = not a finite
    number."""
    if not _NUMBER.fullmatch(word):
        return None
    digits = word.replace("_", "").removeprefix("+")
    if digits.lstrip("-").isdigit():
        return digits[: digits.startswith("-")] + (digits.lstrip("-0") or "0")
    number = float(digits)
    return json.dumps(number) if math.isfinite(number) else None


def _convert_cut(word: str) -> str | None:
    if _CUT_NUMBER.fullmatch(word):
        return word
    return next((value[: len(word)] for n, value in _NAMES.items() if n.startswith(word)), None)


PYTHON = Notation(
    quotes=("'", '"'),
    copy_string=copy_python_string,
    copy_key=copy_python_string,
    convert=_convert,
    convert_cut=_convert_cut,
    brackets={"{": "}", "[": "]", "(": ")"},
)


def for_parameter(notation: Notation, parameter: Parameter | None, first: str) -> Notation:
    """Returns a notation whose unquoted words are read by the types that a schema declares: `TRUE`
    is a boolean, and `007` a number, only where it says so.

    Args:
        parameter: the parameter that the value is for; None = an undeclared one.
        first: the first character of the value. Those in brackets have the schema of items.
    """
    if parameter is not None and first in notation.brackets:
        parameter = parameter.items
    if parameter is None or parameter.types == ANY_TYPE:
        return notation
    types, choices = parameter.types, parameter.choices
    is_text, is_number = "string" in types, bool(types & {"integer", "number"})

    def convert(word: str) -> str | None:
        name = word.lower()
        if name in ("true", "false") and "boolean" in types:
            return name
        if name in ("null", "none") and "null" in types and not is_text:
            return "null"
        if is_number and not is_text and (number := _number(word)):
            return number
        found = notation.convert(word)
        if found is None or not is_text or not _LIKE_NUMBER.match(word):
            return found
        is_choice = word in choices and word not in map(json.dumps, choices)
        return _quoted(word) if is_choice or _json_type(found) not in types else found

    return replace(notation, convert=convert)


def copy_python(scan: Scanner, emit: Emit, parameter: Parameter | None = None) -> Incremental[bool]:
    """Reads one Python literal, the value of a parameter if one is given, and emits it as JSON."""
    notation = for_parameter(PYTHON, parameter, (yield from scan.peek()))
    return (yield from copy_value(scan, emit, notation))


_FIRST_CHARACTERS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean"}


def value_of(text: str, parameter: Parameter | None) -> str:
    """Converts the text of a parameter to JSON. If it is a JSON or Python literal of a type that
    the schema allows, returns that value, otherwise a string. Where a string is allowed too, only
    text that is exactly a JSON number is a number."""
    types = ANY_TYPE if parameter is None else parameter.types
    word = text.strip()
    python = for_parameter(PYTHON, parameter, word[:1])
    value = python.convert(word) or to_json(word, JSON) or to_json(word, python)
    if value is None or (value[0] == '"' and word[0] not in PYTHON.quotes):
        return _quoted(text)
    if "string" in types:
        is_exact = word == text or value[0] in '"[{'
        if not is_exact or word[0] == "(" or _json_type(value) not in types:
            return _quoted(text)
    return value


def _json_type(text: str) -> str:
    if text == "null":
        return "null"
    number = "integer" if text.lstrip("-").isdigit() else "number"
    return _FIRST_CHARACTERS.get(text[0], number)
