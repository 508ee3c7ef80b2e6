"""Reads the lines of batches, and writes those of their results."""

from __future__ import annotations

from collections.abc import Generator
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

_ID_PREFIX: Final = "batch_req_"
_NUMBER_DIGITS: Final = 8


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


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


def read_lines(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Yields the lines of a file with their numbers, from 1, without those that are blank. Of a
    line that is too long, it yields a beginning that is too long, too."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 2):
            number += 1
            rest = line
            while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE + 2)
            line = line.strip()
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line:
                yield number, line


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
