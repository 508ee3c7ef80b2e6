"""Reads the lines of batches, and writes those of their results."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Generator
from io import SEEK_CUR, BufferedReader, FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from fastovms.json_lines import on_one_line

MAX_LINE: Final = 64 * 1024 * 1024
"""Bytes of a line."""

MAX_CUSTOM_ID: Final = 512
"""Characters of a `custom_id`."""

EXPIRED: Final = "batch_expired"
CANCELLED: Final = "batch_cancelled"
REASONS: Final = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "This request was not executed: its batch was cancelled.",
}
"""Why lines were never asked, by the code that tells it."""

_PIECE: Final = 1024 * 1024
_BUFFER: Final = 128 * 1024
_Utf8: Final = codecs.getincrementaldecoder("utf-8")
_ID_PREFIX: Final = "batch_req_"
_NUMBER_DIGITS: Final = 8


NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises at a text that is no JSON, or is nested too deeply for it."""

_FORBIDDEN: Final = ("stream", "background")
"""What no line may ask: fields of its body that must not be true."""


class BatchLine(NamedTuple):
    """One request of a batch.

    Attributes:
        body: JSON.
        forbidden: the field by which it asks what no line may; None = it does not.
    """

    custom_id: str
    url: str
    body: bytes
    forbidden: str | None = None


class _Line(msgspec.Struct, frozen=True):
    custom_id: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, frozen=True):
    stream: Any = None
    background: Any = None


class AskLater(NamedTuple):
    """What a line gets where it cannot be answered now: after so many seconds it may ask again."""

    seconds: float


class LineAnswer(NamedTuple):
    """What a handler has answered to a line.

    Attributes:
        body: JSON.
    """

    status: int
    request_id: str
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def read_lines(
    path: Path, on_read: Callable[[int], None] = lambda size: None
) -> Generator[tuple[int, bytes], None, None]:
    """Yields the lines of a file with their numbers, from 1, without those that are blank. Of a
    line that is too long, it yields a beginning that is too long, too.

    Args:
        on_read: is called with the number of bytes of each line that is read, and of each buffer of
            blank lines.
    """
    with BufferedReader(FileIO(path), _BUFFER) as file:
        number = 0
        while line := file.readline(MAX_LINE + 2):
            number += 1
            on_read(len(line))
            rest = line
            while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE + 2)
                on_read(len(rest))
            line = line.strip()
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line:
                yield number, line
            else:
                number += _skip_blank_lines(file, on_read)


def _skip_blank_lines(file: BufferedReader[Any], on_read: Callable[[int], None]) -> int:
    """Reads past the blank lines that lie ahead, a buffer at a time: a loop in Python over millions
    of them would take minutes. Returns how many lines it has passed."""
    count = 0
    while buffered := file.peek():
        num_blank = len(buffered) - len(buffered.lstrip())
        end = buffered.rfind(b"\n", 0, num_blank) + 1
        if not end:
            break
        count += buffered.count(b"\n", 0, end)
        file.seek(end, SEEK_CUR)
        on_read(end)
    return count


def parse_line(line: bytes) -> BatchLine:
    """Returns the request of a line that was checked. It takes long where the line is: it is for a
    thread."""
    request = msgspec.json.decode(line, type=_Line)
    return BatchLine(request.custom_id, request.url, bytes(request.body), _forbidden(request.body))


def _forbidden(content: msgspec.Raw) -> str | None:
    try:
        body = msgspec.json.decode(content, type=_Body)
    except NOT_JSON:
        return None  # the handler says better what is wrong
    return next((name for name in _FORBIDDEN if getattr(body, name) is True), None)


def is_utf8(line: bytes) -> bool:
    """Whether a line is UTF-8, which msgspec does not ask of what it passes over. Of a long line
    each call looks at a piece: it has the GIL meanwhile."""
    decoder = _Utf8()
    try:
        for start in range(0, len(line), _PIECE):
            decoder.decode(line[start : start + _PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def result_id(key: str, number: int) -> str:
    """Returns the id of a line's result.

    Args:
        key: tells the batch from others.
        number: the line's.
    """
    return f"{_ID_PREFIX}{key}{number:0{_NUMBER_DIGITS}x}"


def result_start(key: str) -> bytes:
    """Returns what the lines of all results of a batch begin with."""
    return f'{{"id":"{_ID_PREFIX}{key}'.encode()


def number_of(id: str, key: str) -> int | None:
    """Returns which line of the batch a result with this id is of; None = of none."""
    start = f"{_ID_PREFIX}{key}"
    digits = id.removeprefix(start)
    if not id.startswith(start) or len(digits) != _NUMBER_DIGITS:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def answer_line(id: str, custom_id: str, answer: LineAnswer) -> bytes:
    """Returns the line that tells of an answer."""
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": orjson.Fragment(answer.body),
    }
    return _line(id, custom_id, response, None)


def unasked_line(id: str, custom_id: str, code: str) -> bytes:
    """Returns the line that tells of a request which was never made."""
    return _line(id, custom_id, None, {"code": code, "message": REASONS[code]})


def _line(id: str, custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    return on_one_line(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
