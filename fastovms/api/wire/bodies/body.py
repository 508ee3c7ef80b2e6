"""Decodes a request body into a typed struct, with errors that name the field, the value and the
type that is expected."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from typing import Any, Final, TypeVar

import msgspec

from fastovms.api.wire.bodies.json_scan import (
    LONG_STRING,
    MAX_NESTING,
    Span,
    nested_too_deeply,
    scan,
)
from fastovms.api.wire.bodies.long_strings import (
    put_back,
    take_out,
    whole_text,
    whole_value,
    without_place,
)
from fastovms.errors import InvalidField, MalformedBody

LARGE: Final = 64 * 1024
"""Bytes from which a body is decoded in a thread."""

_SCANNED: Final = 16 * 1024
"""Bytes from which a body is weighed before it is decoded: a smaller one never takes long."""

_TAKEN_APART: Final = 1024 * 1024
"""Bytes from which long strings are decoded apart."""

_MAX_REST: Final = 8 * 1024 * 1024
"""The most bytes of a body besides its long strings."""

_MAX_EXAMINED: Final = 1024 * 1024
"""Bytes up to which a faulty body is read again to say more about the fault."""

_MAX_SHOWN: Final = 60
"""Characters of a value that an error repeats."""

_MAX_PATH: Final = 100
"""Characters of a field's name that an error repeats: the client may have made it up."""

_MAX_KEY: Final = 20
"""Characters of a key that an error repeats."""

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


def decode(content: bytes | mmap, schema: type[T]) -> T:
    """Parses a body.

    Raises:
        MalformedBody: it is not UTF-8, not JSON, not an object, or nested too deeply.
        InvalidField: a field has the wrong type, or is a number that no float can hold.
    """
    strings: Mapping[str, str] = {}
    if isinstance(content, mmap) or len(content) >= _TAKEN_APART:
        body, strings = _taken_apart(content, scan(content))
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
    return decoded


def show(value: object) -> str:
    """Renders a value as JSON for an error message, in 60 characters at most.

    A longer text is cut, and ends with dots. The time does not grow with the value: elements
    beyond those that may be shown are not looked at. What JSON cannot render is shown as Python
    writes it.
    """
    value = _beginning(value, iter(range(_MAX_SHOWN)))
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _beginning(value: object, room: Iterator[int]) -> object:
    """Returns as much of a value as may be shown. `room` has an element for each element that may
    be."""
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


def _taken_apart(body: bytes | mmap, spans: Sequence[Span]) -> tuple[bytes, dict[str, str]]:
    """Returns what `take_out` does.

    Raises:
        MalformedBody: as `take_out`, and too much is left.
    """
    rest = len(body) - sum(span.end - span.start for span in spans)
    if rest > _MAX_REST:
        raise MalformedBody(
            f"the body has more than {_MAX_REST} bytes besides strings of {LONG_STRING} bytes and "
            "more"
        )
    try:
        return take_out(body, spans)
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None


def _check_constants(text: str, strings: Mapping[str, str]) -> None:
    """Names the field that holds a NaN or an Infinity, which is not JSON, though Python's clients
    may send it."""
    if "NaN" not in text and "Infinity" not in text:
        return
    try:
        found = next(_non_finite(json.loads(text), ""), None)
    except (ValueError, RecursionError):
        return
    if found is not None and found[0]:
        path = whole_text(found[0], strings, _MAX_PATH)[:_MAX_PATH]
        raise MalformedBody(
            f"the body is not valid JSON: {path} must be a finite number, not {show(found[1])}",
            param=path,
        )


def _check_surrogates(text: str) -> None:
    """Says so where the only fault is half of a character that JSON writes as a pair."""
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
        path = path.partition("[...]")[0]  # what is inside of an object is not told
        reason = whole_text(complaint.partition(" - at ")[0], strings, _MAX_SHOWN)
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
    """Returns the path and the value of an object's first member that is of none of the types."""
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
    return whole_value(value, strings)


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members whose keys come once: of several with one key (RFC 8259, 4, leaves open
    which of them counts) nobody knows which is at fault."""
    counts = Counter([key for key, _ in members])
    return {key: value for key, value in members if counts[key] == 1}
