"""Reads protobuf's text format without a schema, and writes strings in it.

The grammar is that of the text format's specification; the caller decides which fields are valid.
Protobuf's own parser is not used, because it would need MediaPipe's complete schema and silently
drops unknown, hence misspelt, options without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fastovms.errors import ConfigurationError

MAX_NESTING: Final = 100

_TOKEN: Final = re.compile(
    r"""
      (?P<blank>(?:\s|\#[^\n]*)+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>0[xX][0-9a-fA-F]+ | (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
    | (?P<text>"(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*')
    | (?P<sign>[-:{}<>\[\],;/.])
    """,
    re.VERBOSE,
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<hex>[xX][0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|(?P<char>.))"
)
_CHARS: Final = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?", strict=True))
_CLOSING: Final = {"{": "}", "<": ">"}


class BareWord(str):
    """An unquoted value: an enum value, or true or false."""


Scalar = str | int | float | BareWord


class SyntaxFault(ConfigurationError):
    """Raised if a text is malformed; line numbers count from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Field:
    """A field with one value; a repeated field occurs as several `Field`s.

    Attributes:
        name: the field's name, or the name of an extension or Any in brackets without spaces, such
            as "[type.example.com/a.B]".
    """

    name: str
    value: Scalar | Message
    line: int


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of a message, in the order of the text."""

    fields: list[Field] = field(default_factory=list)

    def all(self, name: str) -> list[Field]:
        """Returns all fields with this name."""
        return [field for field in self.fields if field.name == name]


def parse(text: str) -> Message:
    """Parses a text. Raises SyntaxFault if the text is malformed."""
    return _FieldParser(text).message(end="", depth=0)


def quote(text: str) -> str:
    """Returns a string literal, with the quotes that need fewer escapes."""
    mark = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace(mark, f"\\{mark}").replace("\n", "\\n")
    return f"{mark}{escaped}{mark}"


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class _FieldParser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def message(self, *, end: str, depth: int) -> Message:
        """Reads fields up to `end`, which is consumed; "" = the end of the text."""
        if depth > MAX_NESTING:
            raise self._fault(f"messages are nested more than {MAX_NESTING} levels deep")
        message = Message()
        while self._next.text != end:
            message.fields.extend(self._field(depth))
            if self._next.text in (",", ";"):
                self._take()
        self._take()
        return message

    def _field(self, depth: int) -> list[Field]:
        line = self._next.line
        name = self._name()
        has_colon = self._next.text == ":"
        if has_colon:
            self._take()
        elif self._next.text not in ("{", "<", "["):
            raise self._fault(f"expected : or {{ after {name}, not {self._shown()}")
        if self._next.text != "[":
            return [Field(name, self._value(depth), line)]
        return [Field(name, value, line) for value in self._list(depth)]

    def _name(self) -> str:
        if self._next.kind == "word":
            return self._take().text
        if self._next.text != "[":
            raise self._fault(f"expected the name of a field, not {self._shown()}")
        parts = [self._take().text]
        while self._next.kind == "word" or self._next.text in (".", "/", "-"):
            parts.append(self._take().text)
        self._expect("]")
        name = "".join(parts[1:])
        if not all(map(_NAME.fullmatch, name.replace("-", "_").split("/"))):
            raise self._fault(f"[{name}] is not the name of an extension")
        return f"[{name}]"

    def _list(self, depth: int) -> list[Scalar | Message]:
        self._expect("[")
        values: list[Scalar | Message] = []
        while self._next.text != "]":
            if values:
                self._expect(",")
            values.append(self._value(depth))
        self._take()
        return values

    def _value(self, depth: int) -> Scalar | Message:
        token = self._next
        if token.text in _CLOSING and token.kind == "sign":
            self._take()
            return self.message(end=_CLOSING[token.text], depth=depth + 1)
        if token.kind == "text":
            return self._text()
        negative = token.text == "-"
        if negative:
            self._take()
        if self._next.kind == "number":
            number = _number(self._take().text)
            return -number if negative else number
        if self._next.kind == "word":
            word = self._take().text
            return BareWord(f"-{word}") if negative else BareWord(word)
        raise self._fault(f"expected a value, not {self._shown()}")

    def _text(self) -> str:
        """Reads a string; adjacent string literals are joined."""
        data = b""
        line = self._next.line
        while self._next.kind == "text":
            token = self._take()
            data += _unescape(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SyntaxFault(line, "a string is not valid UTF-8") from None

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens, token)
        return token

    def _expect(self, text: str) -> None:
        if self._next.text != text:
            raise self._fault(f"expected {text}, not {self._shown()}")
        self._take()

    def _shown(self) -> str:
        return self._next.text or "the end"

    def _fault(self, message: str) -> SyntaxFault:
        return SyntaxFault(self._next.line, message)


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SyntaxFault(line, f"unexpected {text[position]!r}")
        assert match.lastgroup is not None
        if match.lastgroup != "blank":
            yield _Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")
        position = match.end()
    yield _Token("end", "", line)


def _number(text: str) -> int | float:
    if re.fullmatch(r"0[xX].*", text):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    if text.isdigit():
        return int(text)
    return float(text.rstrip("fF"))


def _unescape(token: _Token) -> bytes:
    """Returns the bytes of a string literal; escapes may produce any byte."""
    parts: list[bytes] = []
    body, position = token.text[1:-1], 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[position : match.start()].encode())
        position = match.end()
        if match["hex"]:
            parts.append(bytes([int(match["hex"][1:], 16)]))
        elif match["octal"]:
            parts.append(bytes([int(match["octal"], 8) & 0xFF]))
        elif match["char"] is None:
            parts.append(_character(int(match["u"] or match["U"], 16), token.line))
        elif match["char"] in _CHARS:
            parts.append(_CHARS[match["char"]].encode())
        else:
            raise SyntaxFault(token.line, f"unknown escape {match[0]} in a string")
    parts.append(body[position:].encode())
    return b"".join(parts)


def _character(code: int, line: int) -> bytes:
    try:
        return chr(code).encode()
    except (ValueError, OverflowError):
        raise SyntaxFault(line, f"there is no character U+{code:04X}") from None
