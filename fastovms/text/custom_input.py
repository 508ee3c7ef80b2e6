"""Tells of calls to custom tools as the client does: their text in place of JSON arguments.

The model calls such a tool as a function with one argument, a string: every format of calls has
those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fastovms.text.scanning.output import (
    CallArguments,
    CallBegin,
    CallEnd,
    OutputParser,
    Piece,
)

INPUT: Final = "input"
"""The name of the argument."""

_OPENING: Final = ("{", f'"{INPUT}"', ":", '"')
_HEX: Final = "[0-9a-fA-F]"
_HIGH: Final = rf"\\u[dD][89abAB]{_HEX}{{2}}"
_LOW: Final = rf"\\u[dD][c-fC-F]{_HEX}{{2}}"
_WHOLE: Final = re.compile(
    rf'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB]){_HEX}{{4}}|{_HIGH}{_LOW}'
    rf"|{_HIGH}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F]))*"
)
"""The inside of a JSON string as far as it can be read alone: both halves of a character that is
written as two (RFC 8259, 7), or a half that certainly has no other."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def input_parameters(pattern: str | None = None) -> dict[str, Any]:
    """Returns the parameters of the function that stands for a custom tool.

    Args:
        pattern: a regular expression that the text has to match as a whole; None = any text.
    """
    text: dict[str, Any] = {"type": "string"}
    if pattern is not None:
        text["pattern"] = f"^(?:{pattern})$"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


def input_arguments(text: str) -> str:
    """Returns the arguments of a call with this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class InputReader:
    """Reads the text out of the arguments of one call, while they arrive. Of arguments that begin
    otherwise than with it, the text is only told at the end; of those that have none, all of them
    are."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._rest = ""
        self._before_text = list(_OPENING)
        self._has_text = True
        self._is_told = False

    def push(self, arguments: str) -> str:
        """Adds JSON text and returns what it brings of the call's text."""
        if self._is_told:
            return ""
        if self._before_text:
            self._seen.append(arguments)
            self._open(arguments)
        else:
            self._rest += arguments
        return "" if self._before_text else self._read()

    def finish(self, *, complete: bool) -> str:
        """Ends the arguments and returns the rest of the text.

        Args:
            complete: whether they are all there.
        """
        if not self._before_text or not complete:
            return ""
        arguments = "".join(self._seen)
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if isinstance(read, Mapping) and not read:
            return ""
        text = read.get(INPUT) if isinstance(read, Mapping) else None
        return _encodable(text) if isinstance(text, str) else arguments

    def _open(self, arguments: str) -> None:
        """Reads what stands before the text, unless something else does."""
        if not self._has_text:
            return
        self._rest += arguments
        while self._before_text:
            part = self._before_text[0]
            self._rest = self._rest.lstrip()
            if not self._rest.startswith(part):
                self._has_text = part.startswith(self._rest)
                return
            self._rest = self._rest.removeprefix(part)
            self._before_text.pop(0)

    def _read(self) -> str:
        found = _WHOLE.match(self._rest)
        assert found is not None
        self._rest = self._rest[found.end() :]
        self._is_told = self._rest.startswith('"')
        return _encodable(json.loads(f'"{found[0]}"', strict=False))


def _encodable(text: str) -> str:
    """Returns the text with the character that stands for a fault in place of halves of others."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class CustomCallParser:
    """Implements `OutputParser` around another one.

    Args:
        names: the functions that stand for custom tools.
    """

    def __init__(self, parser: OutputParser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._reader: InputReader | None = None

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    def push(self, text: str) -> Sequence[Piece]:
        return list(self._told(self._parser.push(text)))

    def finish(self, *, is_cut: bool = True) -> Sequence[Piece]:
        return list(self._told(self._parser.finish(is_cut=is_cut)))

    def _told(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            match piece:
                case CallBegin(name=name):
                    self._reader = InputReader() if name in self._names else None
                    yield piece
                case CallArguments(call_index=index, text=arguments) if self._reader is not None:
                    if text := self._reader.push(arguments):
                        yield CallArguments(index, text)
                case CallEnd(call_index=index, complete=complete) if self._reader is not None:
                    if text := self._reader.finish(complete=complete):
                        yield CallArguments(index, text)
                    yield piece
                case _:
                    yield piece
