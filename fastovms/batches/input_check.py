"""Checks the input of a batch before any of it runs: one pass over its lines, which do not lie in
memory."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fastovms.batches.batch_line import MAX_CUSTOM_ID, MAX_LINE, NOT_JSON, is_utf8, read_lines
from fastovms.batches.batch_record import BatchError
from fastovms.batches.pace import Pace
from fastovms.errors import RequestError

MAX_ERRORS: Final = 100
"""How many errors are told of one input."""

_SHOWN: Final = 60

_WEIGHED: Final = 1024 * 1024
"""Bytes from which a line is weighed before it is decoded: a decoder has the GIL for all of it."""

_MANY_BRACKETS: Final = 300
"""Arrays and objects from which it is, too. A decoder goes as deep as the stack of its thread has
room, which another thread, when the line runs, may have less of."""

_UNREAD: Final = ("line_too_long", "invalid_json_line")
"""The codes of lines whose ids are not looked at."""

_FIELDS: Final = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class InputRules:
    """What the lines of a batch must be.

    Attributes:
        endpoint: the URL of all of them; None = they may differ.
        is_endpoint: tells whether there is such an endpoint for batches.
        find_model: returns the model that a name, or none, stands for; None = there is no such
            model.
        max_lines: how many there may be.
        weigh: raises RequestError at JSON that has more values than any endpoint takes. It lets
            other threads have the GIL.
    """

    endpoint: str | None
    is_endpoint: Callable[[str], bool]
    find_model: Callable[[str | None, str], str | None]
    max_lines: int
    weigh: Callable[[bytes], object] = lambda line: None


@dataclass(slots=True)
class CheckedInput:
    """What was found.

    Attributes:
        num_requests: how many lines are not blank.
        last_line: the number of the last of them.
        model: of all lines; None = of none.
        digest: tells the content from others, blank lines included.
    """

    num_requests: int = 0
    last_line: int = 0
    model: str | None = None
    errors: list[BatchError] = field(default_factory=list)
    digest: str = ""


class _Line(msgspec.Struct, frozen=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct, frozen=True):
    model: Any = None


def check_input(path: Path, rules: InputRules, pace: Pace | None = None) -> CheckedInput:
    """Checks a file. It blocks: it is for a thread. Of each line it keeps 8 bytes.

    Args:
        pace: of reading, for the threads that answer others.

    Raises:
        OSError: the file cannot be read.
        Stopped: the pace says so.
    """
    pace = pace or Pace()
    checked = CheckedInput()
    seed = secrets.token_bytes(16)  # so that nobody can make up ids with one hash
    hashes = array("Q")
    digest = hashlib.blake2b(digest_size=8)
    for number, line in read_lines(path, pace.spend):
        digest.update(b"%d\n%d\n" % (number, len(line)))
        digest.update(line)
        if checked.num_requests >= rules.max_lines:
            message = f"the file has more than {rules.max_lines} requests, which is the limit"
            checked.errors.append(BatchError("too_many_requests", message))
            break
        checked.num_requests += 1
        checked.last_line = number
        error = _check_line(line, rules, checked, seed, hashes)
        if error is not None:
            checked.errors.append(msgspec.structs.replace(error, line=number))
        if len(checked.errors) >= MAX_ERRORS:
            break
    if not checked.num_requests:
        checked.errors.append(BatchError("empty_file", "the file has no line"))
    if len(checked.errors) < MAX_ERRORS:
        most = MAX_ERRORS - len(checked.errors)
        unread = {error.line for error in checked.errors if error.code in _UNREAD}
        lines = takewhile(lambda found: found[0] <= checked.last_line, read_lines(path, pace.spend))
        readable = (found for found in lines if found[0] not in unread)
        checked.errors += _repeated(readable, hashes, seed, most)
    checked.digest = digest.hexdigest()
    return checked


def _check_line(
    line: bytes, rules: InputRules, checked: CheckedInput, seed: bytes, hashes: array[int]
) -> BatchError | None:
    """Returns what is wrong with a line, and notes its model and the hash of its id."""
    if len(line) > MAX_LINE:
        return BatchError("line_too_long", f"a line must have at most {MAX_LINE} bytes")
    if not is_utf8(line):
        return BatchError("invalid_json_line", "the line is not UTF-8")
    if len(line) >= _WEIGHED or line.count(b"[") + line.count(b"{") > _MANY_BRACKETS:
        try:
            rules.weigh(line)
        except RequestError as error:
            return BatchError("invalid_json_line", str(error))
    try:
        request = msgspec.json.decode(line, type=_Line)
    except NOT_JSON:
        return BatchError("invalid_json_line", "the line is not a JSON object")
    for name in _FIELDS:
        value = memoryview(request.body) if name == "body" else getattr(request, name)
        if value in (None, b"", b"null"):
            return BatchError("missing_required_parameter", f"{name} is required", name)
    custom_id = request.custom_id
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters"
        return BatchError("invalid_custom_id", message, "custom_id")
    hashes.append(_hash(custom_id, seed))
    if request.method != "POST":
        return BatchError("invalid_method", "method must be POST", "method")
    url = request.url
    if not isinstance(url, str) or not rules.is_endpoint(url):
        return BatchError("invalid_url", f"url: {str(url)[:_SHOWN]} is no endpoint", "url")
    if rules.endpoint is not None and url != rules.endpoint:
        message = f"url must be {rules.endpoint}, the batch's endpoint, not {url[:_SHOWN]}"
        return BatchError("mismatched_url", message, "url")
    try:
        model = msgspec.json.decode(request.body, type=_Body).model
    except NOT_JSON:
        return BatchError("invalid_body", "body must be an object", "body")
    return _check_model(model, url, rules, checked)


def _check_model(
    name: object, url: str, rules: InputRules, checked: CheckedInput
) -> BatchError | None:
    if name is not None and not isinstance(name, str):
        return BatchError("invalid_model", "model must be a string", "body.model")
    model = rules.find_model(name, url)
    if model is None:
        message = f"the model {'' if name is None else name[:_SHOWN]} does not exist"
        if name is None:
            message = "model is required"
        return BatchError("model_not_found", message, "body.model")
    if checked.model is None:
        checked.model = model
    if model != checked.model and rules.endpoint is not None:
        message = f"all lines must name one model: {checked.model}, not {model}"
        return BatchError("mismatched_model", message, "body.model")
    return None


def _hash(custom_id: str, seed: bytes) -> int:
    data = custom_id.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=seed).digest(), "little")


def _repeated(
    lines: Iterator[tuple[int, bytes]], hashes: array[int], seed: bytes, most: int
) -> list[BatchError]:
    """Returns the errors of ids that come twice. Among a million ids two have one hash by chance
    with a probability of 3e-8.

    Args:
        lines: are gone through only where there are some.
    """
    known: NDArray[np.uint64] = np.sort(np.frombuffer(hashes, np.uint64))
    repeated = np.unique(known[1:][known[1:] == known[:-1]])
    if not len(repeated):
        return []
    del known
    seen = np.zeros(len(repeated), bool)
    errors: list[BatchError] = []
    for number, line in lines:
        try:
            request = msgspec.json.decode(line, type=_Line)
        except NOT_JSON:
            continue
        if not isinstance(request.custom_id, str):
            continue
        value = np.uint64(_hash(request.custom_id, seed))
        place = int(np.searchsorted(repeated, value))
        if place == len(repeated) or repeated[place] != value:
            continue
        if seen[place]:
            message = f"custom_id: an earlier line has {request.custom_id[:_SHOWN]} too"
            errors.append(BatchError("duplicate_custom_id", message, "custom_id", number))
            if len(errors) >= most:
                break
        seen[place] = True
    return errors
