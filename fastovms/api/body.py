"""Bytes of a request body to a typed struct, with errors that name the field, the value and the
type that is expected."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from fastovms.errors import InvalidField, MalformedBody

MAX_NESTING: Final = 100
"""Levels of arrays and objects in a body, OVMS's limit."""

MAX_VALUES: Final = 1_000_000
"""Numbers, strings and so on in a body, of which decoding makes some ten million a second."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_MAX_EXAMINED: Final = 1024 * 1024
"""Bytes up to which a faulty body is read again to say more about the fault."""

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


def decode(body: bytes, schema: type[T]) -> T:
    """Parses a body.

    Raises:
        MalformedBody: not UTF-8, not JSON, not an object, or nested too deeply.
        InvalidField: a field has the wrong type, or is a number that no float can hold.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not valid UTF-8: {error.reason}") from None
    _check_size(body)
    _check_nesting(body)
    try:
        return msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), body) from None
    except RecursionError:
        raise _nested_too_deeply() from None
    except msgspec.DecodeError as error:
        if len(body) <= _MAX_EXAMINED:
            _check_constants(text)
            _check_surrogates(text)
        raise MalformedBody(f"the body is not valid JSON: {error}") from None


def show(value: object) -> str:
    """A value as JSON, cut to a length fit for an error message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nested_too_deeply() -> MalformedBody:
    return MalformedBody(f"the body is nested more than {MAX_NESTING} levels deep")


def _check_size(body: bytes) -> None:
    """Every value becomes a Python object while the event loop waits. A comma inside a string
    counts too: no text has a million."""
    if body.count(b",") >= MAX_VALUES:
        raise MalformedBody(f"the body holds more than {MAX_VALUES} values")


def _check_nesting(body: bytes) -> None:
    """At the speed of C, as bytes: a hostile body is mostly brackets. In a larger body deep nesting
    is left to the decoder, which has a limit of its own."""
    if len(body) > _MAX_EXAMINED or body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NO_BRACKETS), np.uint8)
    is_opening = (brackets == ord("[")) | (brackets == ord("{"))
    depths = np.cumsum(np.where(is_opening, 1, -1))
    if depths.size and depths.max() > MAX_NESTING:
        raise _nested_too_deeply()


def _check_constants(text: str) -> None:
    """Names the field that holds a NaN or an Infinity, which is not JSON, though Python's clients
    may send it."""
    if "NaN" not in text and "Infinity" not in text:
        return
    try:
        found = next(_non_finite(json.loads(text), ""), None)
    except (ValueError, RecursionError):
        return
    if found is not None and (path := found[0][:_MAX_PATH]):
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
            yield from _non_finite(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for position, child in enumerate(value):
            yield from _non_finite(child, f"{path}[{position}]")


def _invalid_field(complaint: str, body: bytes) -> MalformedBody | InvalidField:
    location = _LOCATION.search(complaint)
    expected = _EXPECTED.match(complaint)
    path = location["path"] if location else ""
    if not path:
        return MalformedBody("the body must be a JSON object")
    if not expected:
        reason = complaint.partition(" - at ")[0]
        return InvalidField(f"{path}: {reason[0].lower()}{reason[1:]}", param=path)
    types = expected["types"].split(" | ")
    value = _value_at(path, body)
    if path.endswith("[...]"):  # of an object with keys of any name
        path, value = _wrong_member(path.removesuffix("[...]"), types, body)
    words = [_WORDS.get(name, name) for name in types if name != "null"]
    message = f"{path} must be {' or '.join(words)}"
    if value is not _MISSING:
        message += f", not {show(value)}"
    return InvalidField(message, param=path)


def _wrong_member(path: str, types: list[str], body: bytes) -> tuple[str, Any]:
    """The path and the value of an object's first member that is of none of the types."""
    members = _value_at(path, body)
    if isinstance(members, dict):
        for key, value in members.items():
            if _type_name(value) not in types and not (type(value) is int and "float" in types):
                return f"{path}.{key[:_MAX_KEY]}", value
    return path, _MISSING


def _type_name(value: object) -> str:
    return {list: "array", dict: "object", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def _value_at(path: str, body: bytes) -> Any:
    if len(body) > _MAX_EXAMINED or "[...]" in path:
        return _MISSING
    try:
        value = json.loads(body, object_pairs_hook=_unrepeated)
        for index, key in _STEP.findall(path):
            value = value[int(index)] if index else value[key]
    except (ValueError, LookupError):
        return _MISSING
    return value


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members whose keys come once: of several with one key (RFC 8259, 4, leaves open which of
    them counts) nobody knows which is at fault."""
    counts = Counter([key for key, _ in members])
    return {key: value for key, value in members if counts[key] == 1}
