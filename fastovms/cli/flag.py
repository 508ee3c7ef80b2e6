"""Command-line flags, and value types that only flags have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from fastovms.errors import ConfigurationError
from fastovms.server_config import ConfigField, Settings
from fastovms.setting import FLAGS, SettingFlag, json_object


def boolean(value: str) -> bool:
    """Parses a boolean as Runpod's worker parses its environment variables."""
    parsed = BOOLEANS.get(value.lower())
    if parsed is None:
        raise argparse.ArgumentTypeError(f"must be true or false, not {value!r}")
    return parsed


BOOLEANS: Final = {
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


@dataclass(frozen=True, kw_only=True)
class Flag(SettingFlag):
    """A command-line flag and the setting that it sets."""

    field: ConfigField

    @property
    def shown_default(self) -> str:
        """The default as shown in the help; "" = not shown."""
        default = self.field.default
        if default in (None, "", (), {}) or "(default: " in self.help:
            return ""
        if self.kind.parse is None:
            return "yes" if default else "no"
        return self.kind.show(default)

    @property
    def dest(self) -> str:
        """The flag's attribute name in argparse; flags of one setting share it."""
        return f"{self.field} {self.member}"

    def add_to(self, group: argparse._ArgumentGroup, *, hidden: bool = False) -> None:
        """Adds the flag to a group of a parser. The help does not show a hidden flag."""
        default = f" (default: {self.shown_default})" if self.shown_default else ""
        text = f"{self.help}{default}".replace("%", "%%") if default else self.help
        options: dict[str, Any] = {
            "dest": self.dest,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS if hidden else text,
        }
        if self.kind.parse is None:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"metavar": self.kind.metavar, "type": self.kind.parse}
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
        """Merges mappings. Raises ConfigurationError if two have different values for a key."""
        merged: dict[str, object] = {}
        for key, value in (item for each in values for item in each.items()):
            if merged.setdefault(key, value) != value:
                raise ConfigurationError(f"{self.name} has {key} twice: {merged[key]} and {value}")
        return merged


def flags_of(section: type[Any]) -> list[Flag]:
    """Returns the flags that the fields of a configuration section declare."""
    found: list[Flag] = []
    group = ""
    for known in fields(section):
        for declared in known.metadata.get(FLAGS, ()):
            group = declared.group or group
            name = declared.name or f"--{known.name.replace('_', '-')}"
            given = {**vars(declared), "name": name, "group": group}
            found.append(Flag(**given, field=ConfigField(section, known.name)))
    return found


def groups_of(
    titles: Iterable[str], sections: Iterable[type[Any]]
) -> Mapping[str, tuple[Flag, ...]]:
    """Returns the flags of sections by group title, in the order of the help."""
    groups: dict[str, list[Flag]] = {title: [] for title in titles}
    flags = [flag for section in sections for flag in flags_of(section)]
    for flag in sorted(flags, key=lambda flag: bool(flag.after)):
        group = groups[flag.group]
        names = [known.name for known in group]
        group.insert(names.index(flag.after) + 1 if flag.after else len(group), flag)
    return {title: tuple(group) for title, group in groups.items()}


def settings_of(flags: Iterable[Flag], arguments: argparse.Namespace) -> Settings:
    """Returns the settings of the flags that were given. Raises ConfigurationError if two flags set
    the same key of a mapping to different values."""
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


def client_settings(
    flags: Iterable[Flag],
    arguments: argparse.Namespace,
    key: ConfigField,
    environ: Mapping[str, str],
) -> Settings:
    """Returns the settings of the flags. `key`, if no flag sets it, comes from the environment's
    OPENAI_API_KEY."""
    given = settings_of(flags, arguments)
    value = environ.get("OPENAI_API_KEY", "").strip()
    if value and key not in given.given:
        given |= Settings({key: value})
    return given
