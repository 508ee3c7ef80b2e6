"""Records of batches, their input lines, and their results on disk."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from io import SEEK_CUR, BufferedReader, FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from fastovms.errors import ConfigurationError, FastovmsError
from fastovms.json_types import on_one_line
from fastovms.parts.batches.store import FileStore, OwnedRecord
from fastovms.system.disk import lock_file, open_file
from fastovms.system.threads import DiskThreads

logger = logging.getLogger(__name__)


MAX_LINE: Final = 64 * 1024 * 1024
"""The maximum bytes of a line."""

MAX_CUSTOM_ID: Final = 512
"""The maximum characters of a `custom_id`."""

EXPIRED: Final = "batch_expired"
CANCELLED: Final = "batch_cancelled"
REASONS: Final = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "This request was not executed: its batch was cancelled.",
}
"""The messages for lines that were not run, by error code."""

_PIECE: Final = 1024 * 1024
_BUFFER: Final = 128 * 1024
_Utf8: Final = codecs.getincrementaldecoder("utf-8")
_ID_PREFIX: Final = "batch_req_"
_NUMBER_DIGITS: Final = 8


NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for a text that is not JSON, or is nested too deeply."""

_FORBIDDEN: Final = ("stream", "background")
"""The fields of a line's body that must not be true."""


class BatchLine(NamedTuple):
    """One request of a batch.

    Attributes:
        body: the request body as JSON.
        forbidden: a field of the body that is not allowed in batches; None = no such field.
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


class RetryLater(NamedTuple):
    """A line that cannot be answered now, with the seconds until its retry."""

    seconds: float


class LineAnswer(NamedTuple):
    """The answer of a handler to a line.

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
    """Yields the number, from 1, and the bytes of each line of a file except blank lines. A line
    over the limit is truncated, but still exceeds the limit. `on_read` is called with the bytes of
    each line read, and of each buffer of blank lines."""
    # Files of the operator may have any owner.
    descriptor = open_file(path, os.O_RDONLY, any_owner=True)
    with BufferedReader(FileIO(descriptor), _BUFFER) as file:
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
    """Skips the blank lines at the file's position and returns their number. Reads a buffer at a
    time, because a Python loop over millions of lines would take minutes."""
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
    """Returns the request of a line that passed `check_input`. Slow for long lines, so call it in a
    thread."""
    request = msgspec.json.decode(line, type=_Line)
    return BatchLine(request.custom_id, request.url, bytes(request.body), _forbidden(request.body))


def _forbidden(content: msgspec.Raw) -> str | None:
    try:
        body = msgspec.json.decode(content, type=_Body)
    except NOT_JSON:
        return None  # the handler reports the error
    return next((name for name in _FORBIDDEN if getattr(body, name) is True), None)


def is_utf8(line: bytes) -> bool:
    """Returns whether a line is UTF-8, which msgspec does not check in the parts that it skips.
    Long lines are checked in pieces, because each check holds the GIL."""
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
        key: identifies the batch.
        number: the line's number, from 1.
    """
    return f"{_ID_PREFIX}{key}{number:0{_NUMBER_DIGITS}x}"


def result_start(key: str) -> bytes:
    """Returns the bytes that every result line of a batch begins with."""
    return f'{{"id":"{_ID_PREFIX}{key}'.encode()


def number_of(id: str, key: str) -> int | None:
    """Returns the number of the line whose result has this id; None = the id belongs to another
    batch."""
    start = f"{_ID_PREFIX}{key}"
    digits = id.removeprefix(start)
    if not id.startswith(start) or len(digits) != _NUMBER_DIGITS:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def answer_line(id: str, custom_id: str, answer: LineAnswer) -> bytes:
    """Returns the result line, as JSON, for an answered line."""
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": orjson.Fragment(answer.body),
    }
    return _line(id, custom_id, response, None)


def skipped_line(id: str, custom_id: str, code: str) -> bytes:
    """Returns the result line, as JSON, for a line that was not run; `code` is the error code."""
    return _line(id, custom_id, None, {"code": code, "message": REASONS[code]})


def _line(id: str, custom_id: str, response: Any, error: Any) -> bytes:
    line = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    return on_one_line(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


_RETRY_DELAY: Final = 30.0
"""Seconds until a batch resumes after a failure to write its files."""

_MAX_RETRIES: Final = 3
"""The maximum attempts to write the files of a cancelled batch, which then ends without them."""


class BatchFaults:
    """The faults of one batch. Temporary disk errors are retried; any other error ends the
    batch."""

    def __init__(self, record: BatchRecord, files: FileStore) -> None:
        self._record = record
        self._files = files
        self._has_no_rest = asyncio.Event()
        self._num_retries = 0

    def is_passing(self, error: Exception) -> bool:
        """Returns whether a retry may help. A cancelled batch has a limited number of retries."""
        is_cancelled = self._record.outcome is BatchStatus.CANCELLED
        may_retry = not is_cancelled or self._num_retries < _MAX_RETRIES
        return isinstance(error, OSError) and may_retry and not self._has_lost_input()

    async def rest(self) -> None:
        """Waits for the delay before a retry, or until `end_rest` is called."""
        if self._record.outcome is BatchStatus.CANCELLED:
            self._num_retries += 1
            self._has_no_rest.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_no_rest.wait(), _RETRY_DELAY)

    def end_rest(self) -> None:
        """Ends the wait before a retry, because the batch is cancelled."""
        self._has_no_rest.set()

    def fail_with(self, error: Exception) -> None:
        """Ends the batch with an error and logs the details. Clients see the message of disk and
        model errors, and only the type of other errors."""
        record = self._record
        if self._has_lost_input():
            message = f"the content of the input file {record.input_file_id} is gone"
            logger.error("batches: %s cannot continue: %s", record.id, message)
            self.end_with(BatchError("input_file_not_found", message, "input_file_id"))
            return
        logger.error("batches: %s cannot continue", record.id, exc_info=error)
        cause = first_error(error)
        is_known = isinstance(cause, (OSError, FastovmsError))
        reason = str(cause) if is_known else f"internal server error ({type(cause).__name__})"
        self.end_with(BatchError("server_error", f"the batch could not go on: {reason}"))

    def end_with(self, fault: BatchError) -> None:
        """Records the error that ends the batch. The batch then fails, unless it is already
        ending."""
        record = self._record
        record.errors = [*record.errors, fault]
        if record.outcome is not BatchStatus.CANCELLED:
            record.outcome = BatchStatus.FAILED

    def _has_lost_input(self) -> bool:
        """Returns whether the input file is still needed but missing."""
        if self._record.status is BatchStatus.FINALIZING:
            return False
        return not self._files.path_of(self._record.input_file_id).is_file()


def cause_of_end(error: BaseException) -> BaseException:
    """Returns the error to report for the errors of a batch's lines. A disk error, which may be
    temporary, is returned only if all errors are disk errors."""
    if isinstance(error, ExceptionGroup):
        disk, _ = error.split(OSError)
        return error if disk is None else OSError(str(first_error(disk)))
    return error


def first_error(error: Exception) -> Exception:
    """Returns the first leaf of an exception group, or the error itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def open_output(
    path: Path, key: str, last_line: int, threads: DiskThreads
) -> AsyncIterator[ResultLog]:
    """Opens and locks a results file, which may already have results of this batch. Raises
    ConfigurationError if the file is not readable, or has other content, which is left unchanged.

    Args:
        key, last_line, threads: as for `ResultLog`.
    """
    try:
        lock = lock_file(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None
    log = ResultLog(ResultPaths(path, path), key, last_line, threads)
    try:
        await threads.run(log.open, keeps_foreign=True)
        yield log
    except ForeignResult as error:
        raise ConfigurationError(
            f"line {error.number} of {path} does not belong to this input: name a new output file"
        ) from None
    finally:
        try:
            await log.close()
        finally:
            os.close(lock)


_LONG: Final = 64 * 1024
_END: Final = 8 * 1024
"""The minimum bytes of an answer of which only the end is decoded, and the bytes of that end, which
usually has the usage. Decoding the whole answer would hold the GIL too long."""

_MEMBER: Final = b',"usage":'


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    thinking_tokens: int | None = None


class AnswerUsage(msgspec.Struct, frozen=True):
    """The token usage in one answer, with the field names of Chat Completions, Responses or
    Anthropic's Messages.

    Attributes:
        cache_creation_input_tokens, cache_read_input_tokens: counted in addition to `input_tokens`.
    """

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class AnswerBody(msgspec.Struct, frozen=True):
    """The members of an answer that are decoded."""

    usage: AnswerUsage | None = None


class BatchUsage(msgspec.Struct):
    """The summed token usage of all answers so far."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, usage: AnswerUsage | None) -> None:
        """Adds the usage of one answer; None adds nothing."""
        if usage is None:
            return
        of_input = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
        of_output = usage.completion_tokens_details or usage.output_tokens_details or _Details()
        read = usage.cache_read_input_tokens or 0
        self.input_tokens += usage.prompt_tokens or usage.input_tokens or 0
        self.input_tokens += read + (usage.cache_creation_input_tokens or 0)
        self.output_tokens += usage.completion_tokens or usage.output_tokens or 0
        self.cached_tokens += of_input.cached_tokens or read
        self.reasoning_tokens += of_output.reasoning_tokens or of_output.thinking_tokens or 0


def usage_of(body: bytes) -> AnswerUsage | None:
    """Returns the usage in an answer's body; None = the body has no usage."""
    found = _usage_at_end(body) if len(body) > _LONG else None
    if found is not None:
        return found
    try:
        return msgspec.json.decode(body, type=AnswerBody).usage
    except NOT_JSON:
        return None


def _usage_at_end(body: bytes) -> AnswerUsage | None:
    """Returns the usage if it is near the end of the body; None = the whole body must be decoded.

    A quote after a comma can only begin a member, because quotes in texts are escaped. It is a
    member of the top-level object if exactly one closing brace follows.
    """
    end = body[-_END:]
    at = end.rfind(_MEMBER)
    while at >= 0:
        try:
            return msgspec.json.decode(b"{" + end[at + 1 :], type=AnswerBody).usage
        except NOT_JSON:
            at = end.rfind(_MEMBER, 0, at)
    return None


class BatchStatus(StrEnum):
    """The status of a batch, named as in OpenAI's API."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED: Final = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)


class BatchError(msgspec.Struct, frozen=True):
    """An error of a batch, or of a line of its input; line numbers count from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(OwnedRecord, kw_only=True):
    """The record of a batch. Times are Unix times; None = not reached yet.

    Attributes:
        output_age: seconds after which the output files expire.
        output_id, error_id: the ids of the output files; each file exists only if it has lines.
        num_lines: the number of the last line, known after validation.
        outcome: the status that the batch gets once its files are complete.
        num_idle_starts: the number of consecutive processes that ended before the batch progressed
            beyond `num_done`.
    """

    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    output_id: str
    error_id: str
    metadata: dict[str, str] | None = None
    output_age: int | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    outcome: BatchStatus = BatchStatus.COMPLETED
    model: str | None = None
    errors: list[BatchError] = msgspec.field(default_factory=list)
    num_lines: int = 0
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: BatchUsage = msgspec.field(default_factory=BatchUsage)
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    num_idle_starts: int = 0
    num_done: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def key(self) -> str:
        """The prefix of all result ids of the batch."""
        return self.id.removeprefix("batch_")[:16]

    def enter(self, status: BatchStatus, now: float) -> None:
        """Sets the status of the batch, and records the Unix time `now` for that status."""
        self.status = status
        setattr(self, f"{status}_at", int(now))


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    body: AnswerBody | None = None


class _Result(msgspec.Struct, frozen=True):
    id: str
    response: _Response | None = None


class _Addition(NamedTuple):
    """A result that waits to be written.

    Attributes:
        outcome: the answer, or an error code if the line was not run.
    """

    number: int
    custom_id: str
    outcome: LineAnswer | str


class ForeignResult(Exception):
    """Raised if a results file has a line that does not belong to the batch.

    Attributes:
        number: the number of the line, from 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ResultPaths(NamedTuple):
    """The paths of the file for answers and of the file for errors; they may be equal."""

    output: Path
    errors: Path


class ResultLog:
    """The results of one batch. A line is done once its complete result is in a file.

    Args:
        key: identifies the batch in the ids of its results.
        last_line: the number of the last line of the input.
        threads: the threads that write the files.

    Attributes:
        num_completed, num_failed: the number of results so far.
        usage: the token usage of all successful answers in the files.
    """

    def __init__(self, paths: ResultPaths, key: str, last_line: int, threads: DiskThreads) -> None:
        self._paths = paths
        self._key = key
        self._last_line = last_line
        self._threads = threads
        self._done = bytearray(last_line // 8 + 1)  # one bit per line
        self._files: dict[Path, int] = {}
        self._in_use = threading.Lock()  # held by threads that read or write the files
        self._waiting: dict[Path, list[_Addition]] = {path: [] for path in paths}
        self._writing: asyncio.Future[None] | None = None
        self.num_completed = 0
        self.num_failed = 0
        self.usage = BatchUsage()

    @property
    def num_done(self) -> int:
        return self.num_completed + self.num_failed

    def is_done(self, number: int) -> bool:
        """Returns whether the line with this number has a result."""
        return bool(self._done[number >> 3] & 1 << (number & 7))

    # Stored results

    def open(self, *, keeps_foreign: bool = False) -> None:
        """Opens the files and reads the results of earlier processes. The files are truncated
        before the first line that is incomplete or of another batch. Blocks.

        Args:
            keeps_foreign: whether to truncate only an incomplete last line.

        Raises:
            OSError: a file is not readable.
            ForeignResult: lines that do not belong to the batch would be lost; the files are
                unchanged.
        """
        with self._in_use:
            for path in dict.fromkeys(self._paths):
                self._open(path, keeps_foreign)

    def _open(self, path: Path, keeps_foreign: bool) -> None:
        descriptor = self._files[path] = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        end = 0
        with open(descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") or not self._take(line):
                    if keeps_foreign and not self._is_cut(line):
                        raise ForeignResult(number)
                    break
                end += len(line)
        os.truncate(descriptor, end)

    def _is_cut(self, line: bytes) -> bool:
        """Returns whether the line is the incomplete beginning of a result."""
        start = result_start(self._key)
        return not line.endswith(b"\n") and line[: len(start)] == start[: len(line)]

    def _take(self, line: bytes) -> bool:
        """Records a result of an earlier process; returns False if the line is not a result of this
        batch."""
        try:
            result = msgspec.json.decode(line, type=_Result)
        except NOT_JSON:
            return False
        number = number_of(result.id, self._key)
        if number is None or not 0 < number <= self._last_line or self.is_done(number):
            return False
        response = result.response
        is_success = response is not None and 200 <= response.status_code < 300
        body = None if response is None else response.body
        self._note(number, is_success=is_success)
        if is_success and body is not None:
            self.usage.add(body.usage)
        return True

    # New results

    def add(self, number: int, custom_id: str, answer: LineAnswer) -> None:
        """Queues the answer to a line. After `flush`, the answer is in the file and its tokens are
        counted."""
        path = self._paths.output if answer.is_success else self._paths.errors
        self._waiting[path].append(_Addition(number, custom_id, answer))
        self._note(number, is_success=answer.is_success)

    def add_skipped(self, number: int, custom_id: str, code: str) -> None:
        """Queues an error result with an error code for a line that was not run."""
        self._waiting[self._paths.errors].append(_Addition(number, custom_id, code))
        self._note(number, is_success=False)

    async def flush(self) -> None:
        """Waits until all queued results are in the files. Raises OSError if a file cannot be
        written; the log is then unusable."""
        while self._writing is not None or any(self._waiting.values()):
            if self._writing is None:
                self._writing = asyncio.ensure_future(self._write_waiting())
            await asyncio.shield(self._writing)

    async def _write_waiting(self) -> None:
        waiting = {path: added for path, added in self._waiting.items() if added}
        self._waiting = {path: [] for path in self._paths}
        for usage in await self._threads.run(self._write, waiting):
            self.usage.add(usage)
        self._writing = None  # after an error the task stays, so that later calls raise the error

    def _write(self, waiting: Mapping[Path, Sequence[_Addition]]) -> list[AnswerUsage | None]:
        """Writes results and returns the usage of each answer. Slow for long answers, so call it in
        a thread."""
        with self._in_use:
            for path, added in waiting.items():
                rest = memoryview(b"".join(map(self._line, added)))
                while rest:
                    rest = rest[os.write(self._files[path], rest) :]
        answers = [one.outcome for added in waiting.values() for one in added]
        return [
            usage_of(answer.body)
            for answer in answers
            if isinstance(answer, LineAnswer) and answer.is_success
        ]

    def _line(self, added: _Addition) -> bytes:
        id = result_id(self._key, added.number)
        if isinstance(added.outcome, LineAnswer):
            return answer_line(id, added.custom_id, added.outcome)
        return skipped_line(id, added.custom_id, added.outcome)

    def sync(self) -> None:
        """Syncs the files to disk. Blocks. Raises OSError."""
        with self._in_use:
            for descriptor in self._files.values():
                os.fsync(descriptor)

    async def close(self) -> None:
        """Closes the files once no thread uses them. Queued results are then in the files, unless a
        write has failed. Completes even if the caller is cancelled."""
        await asyncio.shield(self._flush_and_close())

    async def _flush_and_close(self) -> None:
        try:
            with suppress(OSError):
                await self.flush()
        finally:
            await self._threads.run(self._close_files)

    def _close_files(self) -> None:
        with self._in_use:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()

    def _note(self, number: int, *, is_success: bool) -> None:
        self._done[number >> 3] |= 1 << (number & 7)
        if is_success:
            self.num_completed += 1
        else:
            self.num_failed += 1
