"""Declares settings (a configuration field with its default, flag and help), and parses their
values."""

from __future__ import annotations

import argparse
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.quoting import MAX_ADAPTER_NAME, MAX_ADAPTER_PATH, fault_of_text

_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE: Final = re.compile(r"(\d+) ?([kmg]?)(i?b)?", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(
    r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?) ?(ms|s|m|h|d|)", re.ASCII | re.IGNORECASE
)
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)([kKmM]?)", re.ASCII)
_PICTURE_SIZE: Final = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})", re.ASCII)
_MAX_LENGTH: Final = 2**31 - 1
_ROLES: Final = ("system", "user", "assistant")
_LENGTH_UNITS: Final = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}


def text(value: str) -> str:
    """Parses a non-empty string."""
    if not value:
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def names(value: str) -> str:
    """Parses names separated by commas, "a,b", or a JSON list of names, as in vLLM."""
    found: object = value.split(",")
    if value.startswith("["):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(name, str) and name.strip() for name in found)
    ):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, not {value!r}")
    return ",".join(name.strip() for name in found)


def networks(value: str) -> str:
    """Parses addresses and networks separated by commas; * = any."""
    listed = names(value)
    for network in listed.split(","):
        try:
            ip_network("::/0" if network == "*" else network)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be addresses or networks such as 10.0.0.0/8, separated by commas, or *, "
                f"not {network!r}"
            ) from None
    return listed


def path(value: str) -> Path:
    """Parses a path."""
    return Path(text(value))


def root_path(value: str) -> str:
    """Parses a URL path prefix, and removes the slash at its end; "/" = none."""
    if not re.fullmatch(r"(/[^/?#\s]+)*/?", value, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be a path that begins with /, not {value!r}")
    return value.rstrip("/")


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns a parser of integers from `low` to `high`; None = no upper bound."""

    def parse(value: str) -> int:
        try:
            parsed = int(value)
        except ValueError:
            parsed = low - 1
        if parsed < low or (high is not None and parsed > high):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"must be an integer {allowed}, not {value!r}")
        return parsed

    return parse


def number(
    unit: str, *, positive: bool = False, high: float | None = None
) -> Callable[[str], float]:
    """Returns a parser of numbers from 0 to `high`. `unit` is used in its error message; `positive`
    excludes 0."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            parsed = -1.0
        too_high = high is not None and parsed > high
        if not 0 <= parsed < float("inf") or (positive and not parsed) or too_high:
            allowed = "more than 0" if positive else "0 or more"
            if high is not None:
                allowed += f" and at most {high:,.0f}"
            raise argparse.ArgumentTypeError(
                f"must be a number of {unit}, {allowed}, not {value!r}"
            )
        return parsed

    return parse


def size(value: str) -> int:
    """Parses bytes: "65536", "64k", "64 MiB". Units are powers of 1024."""
    match = _SIZE.fullmatch(value)
    parsed = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if not parsed:
        raise argparse.ArgumentTypeError(
            f"must be a number of bytes above 0, such as 65536, 64K or 1G, not {value!r}"
        )
    return parsed


def duration(value: str) -> float:
    """Parses seconds: "90", "0.5", "90s", "500ms", "15m", "2h", "30d"."""
    match = _DURATION.fullmatch(value)
    parsed = float(match[1]) * _SECONDS[match[2].lower()] if match else math.inf
    if math.isinf(parsed):
        raise argparse.ArgumentTypeError(
            f"must be a time of 0 or more, such as 90s, 15m or 2h, not {value!r}"
        )
    return parsed


def some_duration(value: str) -> float:
    """Parses seconds above 0; see `duration`."""
    parsed = duration(value)
    if not parsed:
        raise argparse.ArgumentTypeError(f"must be a time of more than 0, not {value!r}")
    return parsed


def show_duration(value: object) -> str:
    """Formats seconds in the form that `duration` parses."""
    assert isinstance(value, float)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value and value % length == 0:
            return f"{value / length:g}{unit}"
    return f"{value:g}s" if value else "0"


def count(low: int, high: int | None = None) -> Callable[[str], int]:
    """Returns a parser of integers with vLLM's units: "8k" (8000), "8K" (8192), "1m", "1M"."""

    def parse(value: str) -> int:
        match = _LENGTH.fullmatch(value)
        exact = Fraction(match[1]) * _LENGTH_UNITS[match[2]] if match else Fraction(1, 2)
        return integer(low, high)(str(exact) if match and exact.denominator == 1 else value)

    return parse


def show_count(value: object) -> str:
    """Formats a number in the form that `count` parses: 8192 is "8K", 100000 is "100k"."""
    assert isinstance(value, int)
    for unit in ("M", "m", "K", "k"):
        if value and value % _LENGTH_UNITS[unit] == 0:
            return f"{value // _LENGTH_UNITS[unit]}{unit}"
    return str(value)


def model_length(value: str) -> int | None:
    """Parses tokens: "8192", "8k" (8000), "8K" (8192), "1.5k", as in vLLM. Returns None for "auto"
    and -1."""
    if value.lower() == "auto" or value == "-1":
        return None
    match = _LENGTH.fullmatch(value)
    parsed = Fraction(match[1]) * _LENGTH_UNITS[match[2]] if match else Fraction(0)
    if not 1 <= parsed <= _MAX_LENGTH or parsed.denominator != 1:
        raise argparse.ArgumentTypeError(
            f"must be a number of tokens from 1 to {_MAX_LENGTH}, such as 8192, 8K (8192) or 8k "
            f"(8000), or auto, not {value!r}"
        )
    return int(parsed)


def show_size(value: object) -> str:
    """Formats a number of bytes with the largest unit that divides it, such as 64M."""
    assert isinstance(value, int)
    for unit in ("g", "m", "k"):
        if value and value % _UNITS[unit] == 0:
            return f"{value // _UNITS[unit]}{unit.upper()}"
    return str(value)


def picture_size(value: str) -> tuple[int, int]:
    """Parses a width and a height in pixels, such as "512x768"."""
    match = _PICTURE_SIZE.fullmatch(value)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be WIDTHxHEIGHT in pixels, not {value!r}")
    return int(match[1]), int(match[2])


def show_picture_size(value: object) -> str:
    """Formats a width and a height in pixels, such as "512x768"."""
    assert isinstance(value, tuple)
    return "x".join(map(str, value))


def mode(value: str) -> int:
    """Parses file permissions in octal."""
    if not re.fullmatch(r"0?[0-7]{3}", value, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be three octal digits, such as 660, not {value!r}")
    return int(value, 8)


def show_number(value: object) -> str:
    """Formats a number without trailing zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_mode(value: object) -> str:
    """Formats file permissions in octal."""
    return f"{value:o}"


def template(value: str) -> Path | str:
    """Parses the path of a template file, or a template itself, recognized by its braces."""
    return value if "{{" in value or "{%" in value else path(value)


def choice(*allowed: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Returns a parser of a name, ignoring case. `aliases` maps other servers' names."""

    def parse(value: str) -> str:
        name = (aliases or {}).get(value.lower(), value.lower())
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"must be {_or(allowed)}, not {value!r}")
        return name

    return parse


def name_of(*allowed: str) -> Callable[[str], str]:
    """Returns a parser of a name in its exact spelling."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise argparse.ArgumentTypeError(f"must be {_or(allowed)}, not {value!r}")
        return value

    return parse


def _or(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def json_object(value: str) -> dict[str, object]:
    """Parses a JSON object."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {value!r}")
    return parsed


def messages(value: str) -> tuple[Mapping[str, str], ...]:
    """Parses chat messages: a JSON list of objects with `role` and `content`."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    listed = parsed if isinstance(parsed, list) else [None]
    for one in listed:
        members = one if isinstance(one, dict) else {}
        is_whole = members.keys() == {"role", "content"} and isinstance(members["content"], str)
        if not is_whole or members["role"] not in _ROLES:
            shown = reprlib.repr(value if one is None else one)
            raise argparse.ArgumentTypeError(
                'must be a JSON list such as [{"role": "user", "content": "Hi"}], with the roles '
                f"{_or(_ROLES)}, not {shown}"
            )
    return tuple(listed)


def adapters(value: str) -> dict[str, Path]:
    """Parses the directories of adapters by name: NAME=PATH, several separated by commas, or JSON
    in vLLM's format, `{"name": ..., "path": ...}` or a list of such objects."""
    wrong = argparse.ArgumentTypeError(
        'must be NAME=PATH, or JSON such as {"name": "a", "path": "/adapters/a"}, not '
        + repr(value)
    )
    if value.lstrip().startswith(("{", "[")):
        try:
            listed = json.loads(value)
        except (ValueError, RecursionError):
            raise wrong from None
        listed = listed if isinstance(listed, list) else [listed]
        if not all(isinstance(one, dict) for one in listed):
            raise wrong
        pairs = [(one.get("name"), one.get("path")) for one in listed]
    else:
        parts = [part.partition("=") for part in value.split(",")]
        pairs = [(name.strip(), location.strip()) for name, _, location in parts]
    found: dict[str, Path] = {}
    for name, location in pairs:
        if not (isinstance(name, str) and isinstance(location, str) and name and location):
            raise wrong
        checked = (("name", name, MAX_ADAPTER_NAME), ("path", location, MAX_ADAPTER_PATH))
        for what, given, most in checked:
            if (fault := fault_of_text(given, most)) is not None:
                raise argparse.ArgumentTypeError(
                    f"has a {what} that {fault}, not {reprlib.repr(given)}"
                )
        if found.setdefault(name, Path(location)) != Path(location):
            raise argparse.ArgumentTypeError(f"has {name} twice")
    return found


class Kind(NamedTuple):
    """The type of a setting's values.

    Attributes:
        metavar: the name of the value in the help.
        parse: parses the value; None = a switch, with a `--no-` form.
        show: formats the default for the help.
    """

    metavar: str
    parse: Callable[[str], object] | None
    show: Callable[[Any], str] = show_number


SWITCH: Final = Kind("", None)
SIZE: Final = Kind("SIZE", size, show_size)
TIME: Final = Kind("TIME", duration, show_duration)
SOME_TIME: Final = Kind("TIME", some_duration, show_duration)
DIR: Final = Kind("DIR", path)
FILE: Final = Kind("FILE", path)
TEXT: Final = Kind("TEXT", str)
JSON: Final = Kind("JSON", json_object)
ROOT_PATH: Final = Kind("PATH", root_path)
PICTURE_SIZE: Final = Kind("WxH", picture_size, show_picture_size)


def texts(metavar: str) -> Kind:
    """Returns the kind of non-empty string settings."""
    return Kind(metavar, text)


def integers(low: int, high: int | None = None, metavar: str = "N") -> Kind:
    """Returns the kind of integer settings from `low` to `high`; None = no upper bound."""
    return Kind(metavar, integer(low, high))


def counts(low: int, high: int | None = None) -> Kind:
    """Returns the kind of integer settings with units, which the help shows."""
    return Kind("N", count(low, high), show_count)


@dataclass(frozen=True)
class SettingFlag:
    """A command-line flag for a setting.

    Attributes:
        help: the help of the flag. The default is shown after it, unless the text contains one.
        name: "" = the setting's name, with dashes.
        group: title of the help group that starts with this flag; "" = the previous group.
        after: the flag after which the help shows it; "" = the previous one in the section.
        common: whether `--help` shows it; `--help-all` shows every flag.
        repeats: whether it may be given several times; the setting is a tuple.
        merges: whether it accepts several values, and may be given several times. Each value is a
            mapping, and all are merged.
        member: the key that it sets in a setting that is a mapping; "" = it sets the whole setting.
        variable: an environment variable that sets it, too; "" = none.
    """

    kind: Kind
    help: str
    name: str = ""
    group: str = ""
    after: str = ""
    common: bool = False
    repeats: bool = False
    merges: bool = False
    member: str = ""
    variable: str = ""


FLAGS: Final = "flags"
"""The key of a field's metadata under which its flags are stored."""

_Value = TypeVar("_Value")


def setting(
    default: _Value,
    kind: Kind,
    help: str,
    *further: SettingFlag,
    flag: str = "",
    secret: bool = False,
    **options: Any,
) -> _Value:
    """Declares a configuration field, of a section that is a frozen dataclass, and its flag.

    Args:
        further: more flags for it.
        flag: the name of its flag, if it differs from the field's.
        secret: whether the value is hidden when the section is printed.
        options: further attributes of `SettingFlag`.
    """
    metadata = {FLAGS: (SettingFlag(kind, help, flag, **options), *further)}
    declared: Any
    if isinstance(default, dict):
        declared = field(default_factory=dict, metadata=metadata)
    else:
        declared = field(default=default, repr=not secret, metadata=metadata)
    return declared  # type: ignore[no-any-return]
