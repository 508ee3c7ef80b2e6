"""Decodes JSON bodies; large ones are decoded in a thread."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from mmap import mmap
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from fastovms.api.unread import unknown_warning, unread_names
from fastovms.errors import BackendUnavailable, InvalidField, MalformedBody, Overloaded
from fastovms.fair_queue import FairQueue
from fastovms.http.messages import Request

logger = logging.getLogger(__name__)

MAX_NESTING: Final = 100
"""The maximum number of levels of arrays and objects in a body, OVMS's limit."""

MAX_WEIGHT: Final = 500_000
"""The maximum total weight of all values; a plain value weighs 1. A decoder makes some 20 million
of these a second."""

MAX_STRUCTURE: Final = 8 * 1024 * 1024
"""The maximum number of bytes outside of strings, white space included."""

LONG_STRING: Final = 8 * 1024
"""The number of bytes from which a string counts as long."""

_WINDOW: Final = 64 * 1024
_BACKSLASH: Final = ord("\\")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NOT_NUMBERS: Final = b"[]{}: \t\r\n" + b"trufalsn"
"""Characters outside of strings that are not part of a number. The e of true and false is excluded,
because it may be an exponent's."""

_MEMBER: Final = 5
_CONTAINER: Final = 3
_EXACT_NUMBER: Final = 10
_HUGE_NUMBER: Final = 700
"""The weight of a number that takes long to decode, in addition to that of its comma."""

_EXACT_LENGTH: Final = 16
_EXACT: Final = re.compile(rb"[\d.]{16,}|\d[eE]")
"""Matches numbers that are slower to decode: more than one multiplication."""

_HUGE: Final = re.compile(rb"[\d.]{20,}|[eE][+-]?\d{3}")
"""Matches numbers for which a decoder may need arithmetic with hundreds of digits."""


class Span(NamedTuple):
    """The range of a long string's content in a JSON text, without its quotes."""

    start: int
    end: int


def nested_too_deeply() -> MalformedBody:
    """Returns the error for a body that is nested too deeply."""
    return MalformedBody(f"the body is nested more than {MAX_NESTING} levels deep")


def scan(text: bytes | mmap) -> list[Span]:
    """Returns the ranges of strings of at least `LONG_STRING` bytes, in order. Raises MalformedBody
    if the body has more values than `MAX_WEIGHT` or more levels than `MAX_NESTING`.

    A JSON decoder holds the GIL throughout, and stops every stream for that time. The cost is
    therefore estimated here first, window by window. The text need not be valid JSON: where this
    scan would go wrong, the decoder refuses the text.
    """
    structure = _Structure()
    spans: list[Span] = []
    is_inside = False
    start = 0
    at = 0
    while at < len(text):
        end = _window_end(text, at)
        window = text[at:end]
        if b"\\" in window:  # searching one byte is faster than two
            window = mask_escapes(window).replace(b'\\"', b"..")
        if is_inside and b'"' not in window:
            at = end
            continue
        parts = window.split(b'"')
        structure.add(b"".join(parts[is_inside::2]), num_strings=len(parts) // 2)
        if is_inside and len(parts) > 1 and at + len(parts[0]) - start >= LONG_STRING:
            spans.append(Span(start, at + len(parts[0])))
        if max(map(len, parts[1:-1]), default=0) >= LONG_STRING:
            spans += _long_parts(parts, at, is_inside)
        is_inside ^= len(parts) % 2 == 0
        if len(parts) > 1:
            start = end - len(parts[-1])
        at = end
    return spans


def mask_escapes(text: bytes) -> bytes:
    """Returns the text with escaped backslashes masked, so that each remaining backslash begins an
    escape. The text must not begin within an escape."""
    return text.replace(rb"\\", b"..")


def _window_end(text: bytes | mmap, at: int) -> int:
    """Returns the end of a window, which is never within an escape."""
    end = at + _WINDOW
    if end >= len(text):
        return len(text)
    if text[end - 1] != _BACKSLASH:
        return end
    window = text[at:end]
    return end + (len(window) - len(window.rstrip(b"\\"))) % 2


def _long_parts(parts: list[bytes], at: int, is_inside: bool) -> list[Span]:
    """Returns the long strings that begin and end within a window."""
    spans = []
    for position, part in enumerate(parts):
        is_whole = 0 < position < len(parts) - 1
        if is_whole and position % 2 == (not is_inside) and len(part) >= LONG_STRING:
            spans.append(Span(at, at + len(part)))
        at += len(part) + 1
    return spans


class _Structure:
    """Counts values and nesting levels outside of strings."""

    def __init__(self) -> None:
        self._size = 0
        self._weight = 0
        self._depth = 0

    def add(self, text: bytes, *, num_strings: int) -> None:
        """Counts the values and nesting levels in a piece of the text. Raises MalformedBody if
        there are too many."""
        self._size += len(text)
        if self._size > MAX_STRUCTURE:
            raise MalformedBody(f"the body has more than {MAX_STRUCTURE} bytes outside of strings")
        brackets = text.translate(None, _NOT_BRACKETS)
        self._weight += (
            num_strings
            + text.count(b",")
            + _MEMBER * text.count(b":")
            + _CONTAINER * (brackets.count(b"[") + brackets.count(b"{"))
            + _weight_of_numbers(text.translate(None, _NOT_NUMBERS))
        )
        if self._weight > MAX_WEIGHT:
            raise MalformedBody(
                f"the body has more than {MAX_WEIGHT} values; arrays, objects, their members and "
                "long numbers count as several"
            )
        if brackets:
            codes = np.frombuffer(brackets, np.uint8)
            is_opening = (codes == ord("[")) | (codes == ord("{"))
            depths = self._depth + np.cumsum(np.where(is_opening, 1, -1))
            if depths.max() > MAX_NESTING:
                raise nested_too_deeply()
            self._depth = int(depths[-1])


def _weight_of_numbers(text: bytes) -> int:
    """Returns the weight of the numbers that are not plain integers. The text has only numbers and
    separators."""
    longest = max(map(len, text.split(b",")))
    if longest < _EXACT_LENGTH and b"e" not in text and b"E" not in text:
        return 0
    return _EXACT_NUMBER * len(_EXACT.findall(text)) + _HUGE_NUMBER * len(_HUGE.findall(text))


MAX_WIDE: Final = 8 * 1024 * 1024
"""The maximum number of characters of a string that has some beyond ASCII: joining its pieces takes
up to four bytes for each. Base64 has none."""

_PIECE: Final = 512 * 1024
_ESCAPE: Final = 6
"""The number of bytes of the longest escape."""

_WORD = re.compile(r"\w+")
_PLACE = re.compile(r" \(byte \d+\)$")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)


def extract_strings(text: bytes | mmap, spans: Sequence[Span]) -> tuple[bytes, dict[str, str]]:
    """Replaces each long string by a short placeholder that clients cannot guess. Returns the
    shortened text, and the strings by placeholder. Raises MalformedBody if a string is not valid
    JSON, or too long."""
    secret = secrets.token_hex(8)
    parts: list[bytes] = []
    strings: dict[str, str] = {}
    at = 0
    for span in spans:
        name = f"{secret}{len(strings)}"
        strings[name] = _decode(text, span)
        parts += (text[at : span.start], name.encode())
        at = span.end
    return b"".join((*parts, text[at:])), strings


def put_back(body: msgspec.Struct, strings: Mapping[str, str]) -> None:
    """Replaces the placeholders in a decoded body by their strings, in place."""
    for name in body.__struct_fields__:
        value = getattr(body, name)
        whole = restore_strings(value, strings)
        if whole is not value:
            msgspec.structs.force_setattr(body, name, whole)


def restore_strings(value: Any, strings: Mapping[str, str]) -> Any:
    """Returns the value with placeholders replaced by their strings. Lists, objects and structs are
    changed in place."""
    kind = type(value)
    if kind is str:
        return strings.get(value, value)
    if kind is list:
        for position, element in enumerate(value):
            if type(element) is not int:
                value[position] = restore_strings(element, strings)
    elif kind is dict:
        if not strings.keys().isdisjoint(value):
            return {
                strings.get(key, key): restore_strings(member, strings)
                for key, member in value.items()
            }
        for key, member in value.items():
            value[key] = restore_strings(member, strings)
    elif isinstance(value, msgspec.Struct):
        put_back(value, strings)
    return value


def restore_text(text: str, strings: Mapping[str, str], max_length: int) -> str:
    """Returns an error message in which placeholders are replaced by the beginnings of their
    strings."""

    def whole(word: re.Match[str]) -> str:
        name = word[0]
        return strings[name][:max_length] if name in strings else name

    return _WORD.sub(whole, text)


def without_place(error: msgspec.DecodeError) -> str:
    """Returns a decoder's error message without the position, which refers to the shortened
    text."""
    return _PLACE.sub("", str(error))


def _decode(text: bytes | mmap, span: Span) -> str:
    pieces: list[str] = []
    at, is_wide, length = span.start, False, 0
    while at < span.end:
        end = _piece_end(text, at, span.end)
        try:
            text[at:end].decode()
            piece = msgspec.json.decode(b'"%b"' % text[at:end], type=str)
        except UnicodeDecodeError as error:
            # Raised by `decode`; msgspec has its own error from 0.23 on.
            raise _not_utf8(error) from None
        except msgspec.DecodeError as error:
            raise MalformedBody(f"the body is not valid JSON: {without_place(error)}") from None
        length += len(piece)
        is_wide = is_wide or not piece.isascii()
        if is_wide and length > MAX_WIDE:
            raise MalformedBody(
                f"the body has a string of more than {MAX_WIDE} characters, not all of them ASCII"
            )
        pieces.append(piece)
        at = end
    return "".join(pieces)


def _piece_end(text: bytes | mmap, at: int, end: int) -> int:
    """Returns the position at which a piece of a string that begins at `at` may end: not within an
    escape, a character, or a surrogate pair of escapes."""
    if end - at <= _PIECE:
        return end
    end = at + _PIECE
    piece = text[at:end]
    if b"\\" in piece:
        piece = mask_escapes(piece)
    last = piece.rfind(b"\\", _PIECE - _ESCAPE)
    if last < 0:
        backs = (back for back in range(4) if text[end - back] & 0xC0 != 0x80)
        return end - next(backs, 0)
    if _HIGH_SURROGATE.match(piece, last - _ESCAPE):
        last -= _ESCAPE
    return at + last


Result = TypeVar("Result")


class _QueuedWork(Generic[Result]):
    __slots__ = ("call", "done")

    def __init__(self, call: Callable[[], Result], done: asyncio.Future[Result]) -> None:
        self.call = call
        self.done = done


class FairThread(Generic[Result]):
    """Runs calls one at a time in a thread; clients take turns. Used on one event loop.

    Args:
        items: the plural noun for the calls, for messages and the thread's name.
        per_client: the maximum number of waiting calls of one client.
        total: the maximum number of waiting calls.
    """

    def __init__(self, items: str, *, per_client: int, total: int) -> None:
        self._thread = ThreadPoolExecutor(1, items.replace(" ", "-"))
        self._queue: FairQueue[_QueuedWork[Result]] = FairQueue(
            items, per_client=per_client, total=total
        )
        self._items = items
        self._is_busy = False
        self._is_closed = False

    async def run(self, client: str, call: Callable[[], Result]) -> Result:
        """Runs the call in the thread and returns its result. Raises Overloaded if too many calls
        wait, BackendUnavailable if the thread is closed, and the errors of the call. `client` is
        the sender; calls of one client run in order."""
        if self._is_closed:
            raise _closed()
        job: _QueuedWork[Result] = _QueuedWork(call, asyncio.get_running_loop().create_future())
        displaced = self._queue.add(client, job)
        if displaced is not None:
            _refuse(displaced, Overloaded(f"too many {self._items} of this client are waiting"))
        self._begin_next()
        try:
            return await job.done
        finally:
            self._queue.discard(client, job)
            # The traceback of an error refers to this frame. That cycle would keep the error and
            # the body in memory until the next garbage collection.
            del job

    def close(self) -> None:
        """Refuses all waiting calls. The thread ends after its current call."""
        self._is_closed = True
        for job in self._queue.clear():
            _refuse(job, _closed())
        self._thread.shutdown(wait=False)

    def _begin_next(self) -> None:
        while not self._is_busy and (job := self._queue.take()) is not None:
            try:
                work = asyncio.get_running_loop().run_in_executor(self._thread, job.call)
            except Exception as error:  # the system refuses another thread
                _refuse(job, error)
            else:
                self._is_busy = True
                work.add_done_callback(partial(self._end, job))

    def _end(self, job: _QueuedWork[Result], work: asyncio.Future[Result]) -> None:
        self._is_busy = False
        error = work.exception()
        if error is not None:
            _refuse(job, error)
        elif not job.done.done():
            job.done.set_result(work.result())
        self._begin_next()


def _closed() -> BackendUnavailable:
    return BackendUnavailable("the server is shutting down")


def _refuse(job: _QueuedWork[Result], error: BaseException) -> None:
    if not job.done.done():
        job.done.set_exception(error)


LARGE: Final = 64 * 1024
"""The number of bytes from which a body is decoded in a thread."""

_SCANNED: Final = 16 * 1024
"""The number of bytes from which a body's cost is estimated before it is decoded: smaller bodies
never take long."""

_TAKEN_APART: Final = 1024 * 1024
"""The number of bytes from which long strings are decoded separately."""

_MAX_REST: Final = 8 * 1024 * 1024
"""The maximum number of bytes of a body without its long strings."""

_MAX_EXAMINED: Final = 1024 * 1024
"""The maximum number of bytes of an invalid body that is parsed again to describe the error."""

_MAX_SHOWN: Final = 60
"""The maximum number of characters of a value in an error."""

_MAX_PATH: Final = 100
"""The maximum number of characters of a field's name in an error: clients may send any name."""

_MAX_KEY: Final = 20
"""The maximum number of characters of a key in an error."""

_MAX_LOGGED: Final = 1000
"""The maximum number of unknown fields that are logged, each once."""

_MISSING: Final = object()
_WORDS: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`")
_LOCATION = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")

T = TypeVar("T", bound=msgspec.Struct)


def decode(content: bytes | mmap, schema: type[T], unread: list[str] | None = None) -> T:
    """Parses a JSON body into `schema`. Raises MalformedBody if the body is not UTF-8, not JSON,
    not an object, or nested too deeply, and InvalidField if a field has the wrong type, or is a
    number beyond the range of a float. Names of unknown fields are appended to `unread`, if the
    schema declares its known fields (`MEMBERS`)."""
    strings: Mapping[str, str] = {}
    if isinstance(content, mmap) or len(content) >= _TAKEN_APART:
        body, strings = _without_long_strings(content, scan(content))
    else:
        body = content
        if len(body) >= _SCANNED or body.count(b"[") + body.count(b"{") > MAX_NESTING:
            scan(body)
    try:
        text = body.decode()
        decoded = msgspec.json.decode(body, type=schema)
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), body, strings) from None
    except RecursionError:
        raise nested_too_deeply() from None
    except msgspec.DecodeError as error:
        if len(body) <= _MAX_EXAMINED:
            _check_constants(text, strings)
            _check_surrogates(text)
        reason = without_place(error) if strings else error
        raise MalformedBody(f"the body is not valid JSON: {reason}") from None
    if strings:
        put_back(decoded, strings)
    members = getattr(schema, "MEMBERS", None)
    if unread is not None and members is not None:
        unread += unread_names(body, decoded, members)
    return decoded


def show(value: object) -> str:
    """Formats a value as JSON for an error message, in at most 60 characters.

    Longer values are cut and end with dots. The time does not grow with the value: only the shown
    elements are visited. A value that JSON cannot express is shown as Python's repr.
    """
    value = _beginning(value, iter(range(_MAX_SHOWN)))
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def wrong(name: str, words: str, value: object) -> InvalidField:
    """Returns the error for an invalid value of a field. `words` is what the field must be."""
    return InvalidField.about(name, f"must be {words}, not {show(value)}")


_KINDS: Final[Mapping[type[Any], str]] = {
    str: "a string",
    dict: "an object",
    list: "a list",
    bool: "true or false",
}

Kind = TypeVar("Kind")


def typed(value: object, kind: type[Kind], name: str) -> Kind:
    """Returns the value of a field after checking its type. Raises InvalidField if the type
    differs."""
    if not isinstance(value, kind):
        raise wrong(name, _KINDS[kind], value)
    return value


def optional(value: object, kind: type[Kind], name: str) -> Kind | None:
    """Like `typed`, but the value may be None."""
    return None if value is None else typed(value, kind, name)


def one_of(value: object, allowed: Collection[str], name: str) -> str:
    """Returns the value after checking that it is one of `allowed`. Raises InvalidField if not."""
    if not isinstance(value, str) or value not in allowed:
        raise wrong(name, f"one of {', '.join(allowed)}", value)
    return value


def _beginning(value: object, room: Iterator[int]) -> object:
    """Returns the beginning of a value for `show`. Each visited element consumes an item of
    `room`."""
    if isinstance(value, str):
        return value[:_MAX_SHOWN]
    if isinstance(value, list):
        return [_beginning(element, room) for element, _ in zip(value, room, strict=False)]
    if isinstance(value, dict):
        members = zip(value.items(), room, strict=False)
        return {key[:_MAX_SHOWN]: _beginning(member, room) for (key, member), _ in members}
    return value


def _not_utf8(error: UnicodeDecodeError) -> MalformedBody:
    return MalformedBody(f"the body is not valid UTF-8: {error.reason}")


def _without_long_strings(
    body: bytes | mmap, spans: Sequence[Span]
) -> tuple[bytes, dict[str, str]]:
    """Calls `extract_strings`, and raises MalformedBody also if the remaining text is too large."""
    rest = len(body) - sum(span.end - span.start for span in spans)
    if rest > _MAX_REST:
        raise MalformedBody(
            f"the body has more than {_MAX_REST} bytes outside of strings of at least "
            f"{LONG_STRING} bytes"
        )
    return extract_strings(body, spans)


def _check_constants(text: str, strings: Mapping[str, str]) -> None:
    """Raises MalformedBody, with the name of the field, if the text contains NaN or Infinity:
    Python clients may send these although they are not JSON."""
    if "NaN" not in text and "Infinity" not in text:
        return
    try:
        found = next(_non_finite(json.loads(text), ""), None)
    except (ValueError, RecursionError):
        return
    if found is not None and found[0]:
        path = restore_text(found[0], strings, _MAX_PATH)[:_MAX_PATH]
        raise MalformedBody(
            f"the body is not valid JSON: {path} must be a finite number, not {show(found[1])}",
            param=path,
        )


def _check_surrogates(text: str) -> None:
    """Raises MalformedBody if the text has an unpaired surrogate escape and is otherwise valid."""
    if "\\u" not in text:
        return
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(error.object[error.start]):04x}"
        raise MalformedBody(
            f"the body is not valid Unicode: a string has the lone surrogate {surrogate}"
        ) from None
    except (ValueError, RecursionError):
        return


def _non_finite(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            member = key[:_MAX_PATH]
            yield from _non_finite(child, f"{path}.{member}" if path else member)
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from _non_finite(child, f"{path}[{position}]")


def _invalid_field(
    complaint: str, body: bytes, strings: Mapping[str, str]
) -> MalformedBody | InvalidField:
    location = _LOCATION.search(complaint)
    expected = _EXPECTED.match(complaint)
    path = location["path"] if location else ""
    if not path:
        return MalformedBody("the body must be a JSON object")
    if not expected:
        path = path.partition("[...]")[0]  # the path of the object, without its member
        reason = restore_text(complaint.partition(" - at ")[0], strings, _MAX_SHOWN)
        return InvalidField(f"{path}: {reason[0].lower()}{reason[1:]}", param=path)
    types = expected["types"].split(" | ")
    value = _value_at(path, body, strings)
    if path.endswith("[...]"):  # the path ends in an object with keys of any name
        path, value = _wrong_member(path.removesuffix("[...]"), types, body, strings)
    words = [_WORDS.get(name, name) for name in types if name != "null"]
    message = f"{path} must be {' or '.join(words)}"
    if value is not _MISSING:
        message += f", not {show(value)}"
    return InvalidField(message, param=path)


def _wrong_member(
    path: str, types: list[str], body: bytes, strings: Mapping[str, str]
) -> tuple[str, Any]:
    """Returns the path and the value of an object's first field whose type is not in `types`."""
    members = _value_at(path, body, strings)
    if isinstance(members, dict):
        for key, value in members.items():
            if _type_name(value) not in types and not (type(value) is int and "float" in types):
                return f"{path}.{key[:_MAX_KEY]}", value
    return path, _MISSING


def _type_name(value: object) -> str:
    return {list: "array", dict: "object", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def _value_at(path: str, body: bytes, strings: Mapping[str, str]) -> Any:
    if len(body) > _MAX_EXAMINED or "[...]" in path:
        return _MISSING
    try:
        value = json.loads(body, object_pairs_hook=_unrepeated)
        for index, key in _STEP.findall(path):
            value = value[int(index)] if index else value[key]
    except (ValueError, LookupError):
        return _MISSING
    return restore_strings(value, strings)


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields whose keys occur only once. For repeated keys, RFC 8259 (section 4) does
    not define which value counts, so an error cannot name one."""
    counts = Counter([key for key, _ in members])
    return {key: value for key, value in members if counts[key] == 1}


Body = TypeVar("Body", bound=msgspec.Struct)

_HUGE_BODY: Final = 1024 * 1024
"""The number of bytes from which decoding a body may take more than a second. Smaller bodies take
some hundredths."""


class BodyReader:
    """Decodes small bodies at once, large ones in a thread, and huge ones in a second thread, so
    that large bodies do not wait for huge ones. More threads would not help: decoding holds the
    GIL."""

    def __init__(self) -> None:
        self._large: FairThread[Any] = FairThread("large bodies", per_client=1024, total=4096)
        self._huge: FairThread[Any] = FairThread("huge bodies", per_client=64, total=256)
        self._logged: set[str] = set()

    async def read(self, request: Request, schema: type[Body], *, default: bytes = b"") -> Body:
        """Reads and decodes the body; see `decode`. Unknown fields become a warning of the request,
        and are logged once each. Raises Overloaded if too many bodies wait for a thread,
        BackendUnavailable if the reader is closed, and the errors of `decode`. `default` replaces
        an empty body."""
        body = request.body or default
        unread: list[str] = []
        decoded: Body
        if len(body) < LARGE:
            decoded = decode(body, schema, unread)
        else:
            thread = self._large if len(body) < _HUGE_BODY else self._huge
            decoded = await thread.run(request.sender, partial(decode, body, schema, unread))
        if unread:
            self._warn(request, unread)
        return decoded

    def _warn(self, request: Request, unread: Sequence[str]) -> None:
        request.warnings = (unknown_warning(unread),)
        if len(self._logged) < _MAX_LOGGED and (new := set(unread) - self._logged):
            self._logged |= new
            names = ", ".join(sorted(new))
            logger.warning("request %s: unknown fields are ignored: %s", request.id, names)

    def close(self) -> None:
        """Refuses waiting bodies and stops the threads."""
        self._large.close()
        self._huge.close()
