"""Writes numbers within bounds as expressions of XGrammar's EBNF, which its own reader of JSON
schemas gets wrong: of `"maximum": 120` it makes one that 122 matches.

The expressions are of what llguidance allows: digits without an exponent, and without zeros at the
end of a fraction that equals a bound.
"""

from __future__ import annotations

import math
from decimal import Decimal

_FRACTION = '("." [0-9]+)?'


def integers(low: float | None, high: float | None) -> str | None:
    """Returns an expression of the integers from `low` to `high`, None standing for no bound; None
    if there are none."""
    least = None if low is None else math.ceil(low)
    most = None if high is None else math.floor(high)
    if least is None and most is None:
        return '"-"? ("0" | [1-9] [0-9]*)'
    if least is not None and most is not None and least > most:
        return None
    parts = []
    if least is None or least < 0:
        nearest = 1 if most is None or most >= 0 else -most
        if least is not None and most is not None and most >= 0:
            nearest = 0
        parts.append(f'"-" ({_whole(nearest, None if least is None else -least)})')
    if most is None or most >= 0:
        parts.append(_whole(max(0, least or 0), most))
    return _either(parts)


def numbers(
    low: float | None, high: float | None, *, has_low: bool = True, has_high: bool = True
) -> str | None:
    """Returns the same of all numbers. `has_low` and `has_high` tell whether a bound is itself
    allowed."""
    if low is None and high is None:
        return '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?'
    if low is not None and high is not None:
        if low > high or (low == high and not (has_low and has_high)):
            return None
        if low == high:
            return f'"{_text(low)}"'
    parts = []
    if low is None or low < 0:
        nearest, has_nearest = (-high, has_high) if high is not None and high < 0 else (0.0, False)
        furthest = None if low is None else -low
        parts.append(f'"-" ({_positive(nearest, furthest, has_nearest, has_low)})')
    if high is None or high > 0:
        least, has_least = (low, has_low) if low is not None and low > 0 else (0.0, True)
        if low == 0:
            has_least = has_low
        parts.append(_positive(least, high, has_least, has_high))
    elif high == 0 and has_high:
        parts.append('"0"')
    return _either(parts)


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _text(number: float) -> str:
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _whole(low: int, high: int | None) -> str:
    """Returns an expression of the integers from `low`, which is not negative, to `high`."""
    if high is None:
        length = len(str(low))
        more = f"[1-9] [0-9]{{{length},}}"
        return f"{_whole(low, 10**length - 1)} | {more}"
    parts = []
    while low <= high:
        top = min(high, 10 ** len(str(low)) - 1)
        parts.append(_digits(str(low), str(top)))
        low = top + 1
    return " | ".join(parts)


def _digits(low: str, high: str) -> str:
    """Returns an expression of what is as long as both and from the one to the other."""
    if low == high:
        return f'"{low}"' if low else '""'
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:].strip("0"):
        parts.append(f'"{first}" ({_digits(low[1:], "9" * rest)})')
        first += 1
    if high[1:].strip("9"):
        parts.append(f'"{last}" ({_digits("0" * rest, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return " | ".join(parts)


def _positive(low: float, high: float | None, has_low: bool, has_high: bool) -> str:
    """Returns an expression of the numbers between two that are not negative."""
    whole, _, fraction = _text(low).partition(".")
    if high is None:
        more = _whole(int(whole) + 1, None)
        return f'"{whole}" {_from(fraction, has_low)} | ({more}) {_FRACTION}'
    last, _, last_fraction = _text(high).partition(".")
    if whole == last:
        width = max(len(fraction), len(last_fraction))
        low_digits, high_digits = fraction.ljust(width, "0"), last_fraction.ljust(width, "0")
        between = f'"." ({_between(low_digits, high_digits, has_low, has_high)})'
        return f'"{whole}" ({between})?' if not fraction else f'"{whole}" {between}'
    parts = [f'"{whole}" {_from(fraction, has_low)}']
    if int(whole) + 1 < int(last):
        parts.append(f"({_whole(int(whole) + 1, int(last) - 1)}) {_FRACTION}")
    if last_fraction:
        parts.append(f'"{last}" ("." ({_up_to(last_fraction, has_high)}))?')
    elif has_high:
        parts.append(f'"{last}" ("." "0"+)?')
    return " | ".join(parts)


def _from(fraction: str, has_it: bool) -> str:
    """Returns an expression of a point and digits, or of nothing, that make at least this
    fraction."""
    if fraction:
        return f'"." ({_at_least(fraction, has_it)})'
    return _FRACTION if has_it else f'"." ({_at_least("", False)})'


def _at_least(digits: str, has_it: bool) -> str:
    if not digits:
        return "[0-9]*" if has_it else "[0-9]* [1-9]"
    first = int(digits[0])
    if has_it and len(digits) == 1:
        return f"[{first}-9] [0-9]*"
    parts = [f'"{first}" ({_at_least(digits[1:], has_it)})']
    if first < 9:
        parts.append(f"[{first + 1}-9] [0-9]*")
    return " | ".join(parts)


def _up_to(digits: str, has_it: bool) -> str:
    if not digits:
        return '""'
    first = int(digits[0])
    below = [f"[0-{first - 1}] [0-9]*"] if first else []
    if not has_it and len(digits) == 1:
        return " | ".join(below)
    return " | ".join([f'"{first}" ({_up_to(digits[1:], has_it)})', *below])


def _between(low: str, high: str, has_low: bool, has_high: bool) -> str:
    if low[0] == high[0]:
        return f'"{low[0]}" ({_between(low[1:], high[1:], has_low, has_high)})'
    first, last = int(low[0]), int(high[0])
    parts = [f'"{first}" ({_at_least(low[1:].rstrip("0"), has_low)})']
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}] [0-9]*")
    rest = high[1:].rstrip("0")
    if rest or has_high:
        parts.append(f'"{last}" ({_up_to(rest, has_high)})')
    return " | ".join(parts)
