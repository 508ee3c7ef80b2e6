"""Checks the input file of a batch."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fastovms.errors import RequestError
from fastovms.fair_queue import FairQueue, Shares
from fastovms.parts.batches.records import (
    MAX_CUSTOM_ID,
    MAX_LINE,
    NOT_JSON,
    BatchError,
    is_utf8,
    read_lines,
)
from fastovms.system.threads import in_daemon_thread

_MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum bytes of all running lines together; a longer line runs alone."""


class _Waiting(NamedTuple):
    size: int
    turn: asyncio.Future[None]


class LineSlots:
    """Limits the lines that run at once. Owners take turns, and so do the batches of one owner,
    line by line.

    A single owner may use all slots and bytes. An owner without a running line may exceed the limit
    (see `Shares`). One line may always run. `limit` returns the maximum number of running lines;
    its value may change, and is read whenever a line starts or ends.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._lines = Shares.of_places(0)
        self._bytes = Shares(_MAX_BYTES, 2 * _MAX_BYTES)
        self._waiting: FairQueue[_Waiting] = FairQueue(
            "lines", per_client=sys.maxsize, total=sys.maxsize
        )

    @property
    def num_used(self) -> int:
        """The number of lines that run."""
        return self._lines.used

    async def acquire(self, size: int, owner: str = "") -> None:
        """Waits until a line of `size` bytes may run. Call `release` at the line's end."""
        waiting = _Waiting(size, asyncio.get_running_loop().create_future())
        self._waiting.add(owner, waiting)
        self._wake()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.turn.done() and not waiting.turn.cancelled():
                self.release(size, owner)
            else:
                self._waiting.discard(owner, waiting)
                self._wake()
            raise

    def release(self, size: int, owner: str = "") -> None:
        """Releases the slot of a line of `size` bytes."""
        self._lines.give_back(owner)
        self._bytes.give_back(owner, size)
        self._wake()

    def _wake(self) -> None:
        while (waiting := self._waiting.take(self._take)) is not None:
            waiting.turn.set_result(None)

    def _take(self, owner: str, waiting: _Waiting) -> bool:
        """Takes a slot and returns True if the line may run now."""
        if waiting.turn.cancelled():  # its cancelled task removes the entry
            return False
        limit, size = self._limit(), waiting.size
        self._lines.free, self._lines.most = limit, 2 * limit + 1
        has_room = self._lines.may_take(owner) and self._bytes.may_take(owner, size)
        if self._lines.used and not has_room:
            return False
        self._lines.hold(owner)
        self._bytes.hold(owner, size)
        return True


_STEPS_AT_ONCE: Final = 32
_BYTES_AT_ONCE: Final = 128 * 1024
"""The maximum number of steps, and of bytes in them, between two pauses. Processing that many
holds the GIL for some tenths of a millisecond."""


class Stopped(Exception):
    """Raised in the thread of a cancelled check."""


class Pace:
    """Slows down work in a thread and makes it cancellable.

    Args:
        pause: seconds of each pause. Without pauses, the check of a large file makes concurrent
            streams several times slower, because a thread that merely releases the GIL gets it back
            too soon.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause
        self._num_steps = 0
        self._num_bytes = 0
        self._is_stopped = False

    def stop(self) -> None:
        """Stops the work at its next step. Thread-safe."""
        self._is_stopped = True

    def spend(self, num_bytes: int) -> None:
        """Counts `num_bytes` that the caller will process next, and pauses if needed. Raises
        Stopped after a call of `stop`."""
        if self._is_stopped:
            raise Stopped
        self._num_steps += 1
        self._num_bytes += num_bytes
        if self._num_steps >= _STEPS_AT_ONCE or self._num_bytes >= _BYTES_AT_ONCE:
            self._num_steps = self._num_bytes = 0
            if self._pause:
                time.sleep(self._pause)


MAX_ERRORS: Final = 100
"""The maximum number of errors that are reported for one input."""

_SHOWN: Final = 60

_WEIGHED: Final = 1024 * 1024
"""The minimum bytes of a line whose JSON values are counted before it is decoded, because decoding
holds the GIL until its end."""

_MIN_COUNTED_BRACKETS: Final = 300
"""The minimum number of arrays and objects in a line whose JSON values are counted, too. The
decoder's nesting limit depends on the thread's stack, and another thread decodes the line when it
runs."""

_UNREAD: Final = ("line_too_long", "invalid_json_line")
"""The error codes of lines whose `custom_id` is unknown and therefore not checked for
repetition."""

_FIELDS: Final = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class InputRules:
    """The rules for the lines of a batch.

    Attributes:
        endpoint: the URL that all lines must use; None = lines may use different URLs.
        is_endpoint: returns whether batch lines may use a URL.
        find_model: returns the served name of the model that a line requests (None = no model
            named) at a URL; None = unknown.
        max_lines: the maximum number of lines.
        weigh: raises RequestError for JSON with more values than endpoints accept. Releases the GIL
            regularly.
    """

    endpoint: str | None
    is_endpoint: Callable[[str], bool]
    find_model: Callable[[str | None, str], str | None]
    max_lines: int
    weigh: Callable[[bytes], object] = lambda line: None


@dataclass(slots=True)
class CheckedInput:
    """The result of a check of an input file.

    Attributes:
        num_requests: the number of lines that are not blank.
        last_line: the number of the last such line, from 1.
        model: the model of all lines; None = the file has no lines.
        digest: a hash of the whole content, including blank lines.
    """

    num_requests: int = 0
    last_line: int = 0
    model: str | None = None
    errors: list[BatchError] = field(default_factory=list)
    digest: str = ""


class _CheckedLine(msgspec.Struct, frozen=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"")


class _CheckedBody(msgspec.Struct, frozen=True):
    model: Any = None


def check_input(path: Path, rules: InputRules, pace: Pace | None = None) -> CheckedInput:
    """Checks an input file and returns the result, errors included. Blocks, so call it in a thread.
    Needs 8 bytes of memory per line. Raises OSError if the file cannot be read; Stopped if the
    check was cancelled.

    Args:
        pace: slows the check down in favour of other threads; None = no pauses.
    """
    pace = pace or Pace()
    checked = CheckedInput()
    seed = secrets.token_bytes(16)  # a random seed prevents deliberate hash collisions of ids
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
    """Checks a line, records its model and the hash of its `custom_id`, and returns its error; None
    = the line is valid."""
    if len(line) > MAX_LINE:
        return BatchError("line_too_long", f"a line must have at most {MAX_LINE} bytes")
    if not is_utf8(line):
        return BatchError("invalid_json_line", "the line is not UTF-8")
    if len(line) >= _WEIGHED or line.count(b"[") + line.count(b"{") > _MIN_COUNTED_BRACKETS:
        try:
            rules.weigh(line)
        except RequestError as error:
            return BatchError("invalid_json_line", str(error))
    try:
        request = msgspec.json.decode(line, type=_CheckedLine)
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
        model = msgspec.json.decode(request.body, type=_CheckedBody).model
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
    """Returns an error for each `custom_id` that occurs twice. A false hash match among a million
    different ids has a probability of 3e-8.

    Args:
        lines: read only if there are equal hashes.
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
            request = msgspec.json.decode(line, type=_CheckedLine)
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


PAUSE: Final = 0.001
"""Seconds of each pause of a check while streams run."""


class InputChecker:
    """Checks input files, each in a separate thread; a million lines take half a minute. The files
    of one owner are checked one at a time, those of different owners in parallel.

    Args:
        pause: seconds of each pause.
    """

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._turns = LineSlots(lambda: 1)

    async def check(self, path: Path, rules: InputRules, owner: str = "") -> CheckedInput:
        """Returns the result of checking a file, after the owner's earlier checks. A cancellation
        ends the thread soon; other checks and the shutdown do not wait for the thread. Raises
        OSError if the file cannot be read."""
        await self._turns.acquire(1, owner)
        pace = Pace(self._pause)
        try:
            return await in_daemon_thread("input-check", partial(check_input, path, rules, pace))
        finally:
            pace.stop()
            self._turns.release(1, owner)
