"""Declares a flag: which field of the configuration it sets, how its value reads, what it means."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastovms.cli.flags.flag_types import show_number
from fastovms.config.settings import ConfigField, Settings
from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. Its default is the field's.

    Attributes:
        parse: reads the value; None = a switch, with a `--no-` form.
        show: words the default.
        shows_default: False where the help says it better.
        repeats: whether it may be given several times; the field is a tuple.
        member: the only one that it sets of a field that is a mapping; "" = it sets the field.
    """

    name: str
    field: ConfigField
    metavar: str
    parse: Callable[[str], object] | None
    help: str
    show: Callable[[object], str] = show_number
    shows_default: bool = True
    repeats: bool = False
    member: str = ""

    @property
    def shown_default(self) -> str:
        """The default in words; "" = the help says it, or there is none."""
        default = self.field.default
        if not self.shows_default or default is None:
            return ""
        if self.parse is None:
            return "yes" if default else "no"
        return self.show(default)

    @property
    def dest(self) -> str:
        """The name by which argparse keeps the value: flags of one field share it."""
        return f"{self.field} {self.member}"

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        default = f" (default: {self.shown_default})" if self.shown_default else ""
        options: dict[str, Any] = {
            "dest": self.dest,
            "default": argparse.SUPPRESS,
            "help": f"{self.help}{default}".replace("%", "%%") if default else self.help,
        }
        if self.parse is None:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"metavar": self.metavar, "type": self.parse}
            if self.repeats:
                options["action"] = "append"
        group.add_argument(self.name, **options)

    def settings_of(self, arguments: argparse.Namespace) -> Settings:
        """Returns what it sets, if it was given."""
        if self.dest not in arguments:
            return Settings()
        value = getattr(arguments, self.dest)
        if self.member:
            value = {self.member: value}
        return Settings({self.field: tuple(value) if self.repeats else value})


def settings_of(flags: Iterable[Flag], arguments: argparse.Namespace) -> Settings:
    """Returns what flags set, of those that were given.

    Raises:
        ConfigurationError: two of them say different things of one member of a mapping.
    """
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
