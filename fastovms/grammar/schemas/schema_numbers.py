"""Refuses numbers in JSON schemas by the keyword's name: those that have no meaning where they
stand, and those that llguidance would change or cannot bear."""

from __future__ import annotations

import math
from typing import Final, TypeGuard

from fastovms.grammar.schemas.finite_schema import Schema

_MAX_EXACT: Final = 2**53 - 1
"""The largest of the integers that all readers of JSON agree on (RFC 8259, 6). llguidance has 64
bits of floating point for a constant: it would write another one for most that are larger, and it
overflows the stack upon those next to -2**63."""

MAX_BOUND: Final = 10**18
"""The largest bound of which llguidance makes an expression."""

_MIN_BOUND: Final = 1e-50
"""The least bound but 0 that is taken: its digits are written out."""

_MIN_MULTIPLE: Final = 1e-10
"""The least divisor of which llguidance can tell the decimal digits."""

_MAX_DIGITS: Final = 1000
"""The most digits of an integer: far beyond what anybody writes, and what Python reads without
effort."""

_MAX_COUNT: Final = 2**32 - 1
"""The greatest number of repetitions of llguidance's expressions."""

_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip
_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def check_numbers(part: Schema) -> None:
    """Raises ValueError for a number that cannot be where it is, in a schema without those within
    it. What is not a number is left for llguidance to complain of."""
    for keyword in _COUNTS:
        _check_count(part, keyword)
    for keyword in (*_LOWER, *_UPPER):
        _check_bound(part, keyword)
    _check_multiple(part)
    _check_values(part)


def within_bounds(schema: Schema) -> Schema:
    """Returns the schema with each bound beyond `MAX_BOUND` replaced by `MAX_BOUND` itself, of
    which llguidance can make an expression. The numbers between the two cannot be generated."""
    lower = {key: -MAX_BOUND for key in _LOWER if (_number(schema, key) or 0) < -MAX_BOUND}
    upper = {key: MAX_BOUND for key in _UPPER if (_number(schema, key) or 0) > MAX_BOUND}
    return {**schema, **lower, **upper} if lower or upper else schema


def with_integer_counts(schema: Schema) -> Schema:
    """Returns the schema with 3 in place of 3.0 where it counts something: a number with a zero
    fractional part is an integer (JSON Schema 2020-12 Core, 4.2.2), for which llguidance does not
    take it."""
    counts = {
        key: int(value)
        for key in _COUNTS
        if isinstance(value := schema.get(key), float) and value.is_integer()
    }
    return {**schema, **counts} if counts else schema


def integer_of(digits: str) -> int:
    """Reads an integer of a schema.

    Raises:
        ValueError: it is too long.
    """
    num_digits = len(digits.removeprefix("-"))
    if num_digits > _MAX_DIGITS:
        raise ValueError(f"numbers must have at most {_MAX_DIGITS} digits, not {num_digits}")
    return int(digits)


def _check_count(part: Schema, keyword: str) -> None:
    value = _number(part, keyword)
    if value is None:
        return
    if not 0 <= value <= _MAX_COUNT or value != int(value):
        raise ValueError(
            f"{keyword} must be a whole number from 0 to {_MAX_COUNT}, not {part[keyword]}"
        )


def _check_bound(part: Schema, keyword: str) -> None:
    value = _number(part, keyword)
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{keyword} must be a finite number, not {value}")
    if value and abs(value) < _MIN_BOUND:
        raise ValueError(
            f"{keyword} must be 0 or at least {_MIN_BOUND:g} away from it, not {value}"
        )
    if keyword in _LOWER and value >= MAX_BOUND:
        raise ValueError(f"{keyword} must be less than {MAX_BOUND}, not {value}")
    if keyword in _UPPER and value <= -MAX_BOUND:
        raise ValueError(f"{keyword} must be more than {-MAX_BOUND}, not {value}")


def _check_multiple(part: Schema) -> None:
    value = _number(part, "multipleOf")
    if value is None:
        return
    if not 0 < value < math.inf:
        raise ValueError(f"multipleOf must be a finite number greater than 0, not {value}")
    if value < _MIN_MULTIPLE:
        raise ValueError(f"multipleOf must be at least {_MIN_MULTIPLE:g}, not {value}")


def _check_values(part: Schema) -> None:
    pending = [("const", part["const"])] if "const" in part else []
    if isinstance(part.get("enum"), list):
        pending += [("enum", value) for value in part["enum"]]
    while pending:
        keyword, value = pending.pop()
        if isinstance(value, dict):
            pending += [(keyword, item) for item in value.values()]
        elif isinstance(value, list):
            pending += [(keyword, item) for item in value]
        elif _is_number(value) and not abs(value) <= _MAX_EXACT:
            raise ValueError(
                f"numbers of {keyword} must be from {-_MAX_EXACT} to {_MAX_EXACT}, not {value}"
            )


def _number(schema: Schema, key: str) -> float | None:
    value = schema.get(key)
    return value if _is_number(value) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
