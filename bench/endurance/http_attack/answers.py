"""Splits the bytes that a server sends into responses, and finds every framing error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 64 * 1024
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 (?P<status>[1-5]\d\d) [ -~]*"
    rb"(?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t -~\x80-\xff]*)*"
)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: chunked(?=\r\n|$)", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"\r\nconnection: close(?=\r\n|$)", re.IGNORECASE)
_DATE: Final = re.compile(rb"\r\ndate: ", re.IGNORECASE)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")


class MalformedAnswer(Exception):
    """The bytes violate RFC 9112."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A final response without its framing."""

    status: int
    head: bytes
    body: bytes

    @property
    def is_last(self) -> bool:
        """Returns whether the response announces the end of the connection."""
        return _CLOSE.search(self.head) is not None


class AnswerReader:
    """Reads the bytes of one connection in pieces of any size.

    Attributes:
        answers: the complete final responses; interim responses are dropped.
        has_begun: whether a part of another response was read.
    """

    def __init__(self, *, is_head: bool = False) -> None:
        """Args: is_head: the first answer is one to HEAD, which has no body."""
        self.answers: list[Answer] = []
        self._is_head = is_head
        self._rest = b""
        self._body: list[bytes] = []
        self._head = b""
        self._status = 0
        self._wanted: int | None = None
        self._to_the_end = False

    @property
    def has_begun(self) -> bool:
        return bool(self._rest or self._head)

    def feed(self, data: bytes) -> None:
        """Reads further bytes. Raises MalformedAnswer."""
        self._rest += data
        while self._rest:
            if not self._head:
                if not self._read_head():
                    return
            elif self._to_the_end:
                self._body.append(self._rest)
                self._rest = b""
            elif self._wanted is not None:
                if not self._read_sized():
                    return
            elif not self._read_chunk():
                return

    def end(self) -> None:
        """Handles the end of the connection. Raises MalformedAnswer if a response is incomplete."""
        if self._to_the_end:
            self._complete()
        elif self.has_begun:
            raise MalformedAnswer(f"an answer was cut: {(self._head + self._rest)[:300]!r}")

    def _read_head(self) -> bool:
        end = self._rest.find(_HEAD_END)
        if end < 0:
            if not self._rest.startswith(b"HTTP/1.1 "[: len(self._rest)]):
                raise MalformedAnswer(f"not the beginning of an answer: {self._rest[:100]!r}")
            if len(self._rest) > _MAX_HEAD:
                raise MalformedAnswer("a head without an end")
            return False
        head = self._rest[:end]
        match = _HEAD.fullmatch(head)
        if match is None:
            raise MalformedAnswer(f"a malformed head: {head[:500]!r}")
        self._rest = self._rest[end + 4 :]
        status = int(match["status"])
        if status < 200:
            return True
        lengths = _LENGTH.findall(head)
        is_chunked = _CHUNKED.search(head) is not None
        if len(lengths) + is_chunked > 1:
            raise MalformedAnswer(f"a body with two framings: {head!r}")
        if not _DATE.search(head):
            raise MalformedAnswer(f"an answer without a date: {head!r}")
        self._head, self._status = head, status
        if self._is_head or status in (204, 304):
            self._is_head = False
            self._wanted = 0
        elif lengths:
            self._wanted = int(lengths[0])
        elif not is_chunked:
            if not _CLOSE.search(head):
                raise MalformedAnswer(f"a body without framing: {head!r}")
            self._to_the_end = True
        if self._wanted == 0:
            self._complete()
        return True

    def _read_sized(self) -> bool:
        assert self._wanted is not None
        if len(self._rest) < self._wanted:
            return False
        self._body.append(self._rest[: self._wanted])
        self._rest = self._rest[self._wanted :]
        self._complete()
        return True

    def _read_chunk(self) -> bool:
        match = _CHUNK.match(self._rest)
        if match is None:
            if len(self._rest) > 10:
                raise MalformedAnswer(f"a malformed chunk: {self._rest[:100]!r}")
            return False
        size, start = int(match[1], 16), match.end()
        if len(self._rest) < start + size + 2:
            return False
        if self._rest[start + size : start + size + 2] != b"\r\n":
            raise MalformedAnswer(f"a chunk without its end: {self._rest[:100]!r}")
        self._body.append(self._rest[start : start + size])
        self._rest = self._rest[start + size + 2 :]
        if size == 0:
            self._complete()
        return True

    def _complete(self) -> None:
        self.answers.append(Answer(self._status, self._head, b"".join(self._body)))
        self._body.clear()
        self._head, self._wanted, self._to_the_end = b"", None, False
