"""A flag of the command line, and the types of flags that only the command line has."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fastovms.config import ConfigField, Settings
from fastovms.errors import ConfigurationError
from fastovms.parts.ovms.options import Choice, Integer, Kind
from fastovms.setting import choice, integer, json_object, name_of, path, show_number, text


def reader_of(kind: Kind) -> Callable[[str], object]:
    """Returns a parser of the values of an option of OpenVINO Model Server."""
    match kind:
        case Integer(low, high):
            return integer(low, high)
        case Choice(names, ignores_case):
            return choice(*names) if ignores_case else name_of(*names)
    if kind is bool:
        return boolean
    return path if kind is Path else text


def boolean(value: str) -> bool:
    """Reads a boolean as Runpod's worker reads its environment."""
    parsed = _BOOLEANS.get(value.lower())
    if parsed is None:
        raise argparse.ArgumentTypeError(f"must be true or false, not {value!r}")
    return parsed


_BOOLEANS: Final = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def media_limits(value: str) -> object:
    """Parses the limits of media per prompt: "image=2,video=0", or JSON."""
    if re.fullmatch(r"\w+=\d+(,\w+=\d+)*", value, re.ASCII):
        return value
    try:
        return json_object(value)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be such as image=2, or a JSON object, not {value!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag for a configuration field, whose default applies.

    Attributes:
        parse: reads the value; None = a switch, with a `--no-` form.
        show: formats the default for the help.
        shows_default: False if the help text describes the default itself.
        repeats: whether it may be given several times; the field is a tuple.
        common: whether `--help` shows it; `--help-all` shows every flag.
        merges: whether it takes several values, and may be given several times. Each value is a
            mapping, as the field is.
        member: the key that it sets in a mapping field; "" = it sets the whole field.
    """

    name: str
    field: ConfigField
    metavar: str
    parse: Callable[[str], object] | None
    help: str
    show: Callable[[object], str] = show_number
    shows_default: bool = True
    repeats: bool = False
    common: bool = False
    merges: bool = False
    member: str = ""

    @property
    def shown_default(self) -> str:
        """The default in words; "" = not shown."""
        default = self.field.default
        if not self.shows_default or default is None:
            return ""
        if self.parse is None:
            return "yes" if default else "no"
        return self.show(default)

    @property
    def dest(self) -> str:
        """The name of the value in argparse; flags of one field share it."""
        return f"{self.field} {self.member}"

    def add_to(self, group: argparse._ArgumentGroup, *, hidden: bool = False) -> None:
        default = f" (default: {self.shown_default})" if self.shown_default else ""
        text = f"{self.help}{default}".replace("%", "%%") if default else self.help
        options: dict[str, Any] = {
            "dest": self.dest,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS if hidden else text,
        }
        if self.parse is None:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"metavar": self.metavar, "type": self.parse}
            if self.repeats:
                options["action"] = "append"
            if self.merges:
                options |= {"action": "extend", "nargs": "+"}
        group.add_argument(self.name, **options)

    def settings_of(self, arguments: argparse.Namespace) -> Settings:
        """Returns the flag's value as settings, if it was given."""
        if self.dest not in arguments:
            return Settings()
        value = getattr(arguments, self.dest)
        if self.member:
            value = {self.member: value}
        if self.merges:
            value = self._merged(value)
        return Settings({self.field: tuple(value) if self.repeats else value})

    def _merged(self, values: Iterable[Mapping[str, object]]) -> dict[str, object]:
        """Returns one mapping. Raises ConfigurationError if two have different values of a key."""
        merged: dict[str, object] = {}
        for key, value in (item for each in values for item in each.items()):
            if merged.setdefault(key, value) != value:
                raise ConfigurationError(f"{self.name} has {key} twice: {merged[key]} and {value}")
        return merged


def settings_of(flags: Iterable[Flag], arguments: argparse.Namespace) -> Settings:
    """Returns the settings from the flags that were given. Raises ConfigurationError if two flags
    set the same key of a mapping to different values."""
    settings = Settings()
    for flag in flags:
        given = flag.settings_of(arguments)
        if flag.member and given.given:
            _check_member(flag, settings, given)
        settings |= given
    return settings


def _check_member(flag: Flag, settings: Settings, given: Settings) -> None:
    value = given.given[flag.field][flag.member]
    before = settings.given.get(flag.field, {}).get(flag.member, value)
    if before != value:
        raise ConfigurationError(
            f"{flag.name} {value} contradicts the {flag.member} {before} that another flag sets: "
            "give one of them"
        )
