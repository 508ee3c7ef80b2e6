"""Accepts command lines of OVMS, vLLM, llama.cpp and Ollama: adds their flags to the parser, and
suggests flags for unknown ones."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from fastovms.cli.flags import FLAGS
from fastovms.cli.foreign_tables import (
    FOREIGN_FLAGS,
    OTHER_NAMES,
    REFUSED_FLAGS,
    REFUSED_SWITCHES,
    SHORT_NAMES,
    on_off,
)
from fastovms.parts.ovms.options import OVMS_OPTIONS
from fastovms.server_config import Settings
from fastovms.setting import path

_PREFIX: Final = "unused "


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of other servers, without showing them in the help."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag in FOREIGN_FLAGS:
        options: dict[str, Any] = {"type": flag.parse}
        if flag.parse is None:
            options = {"action": argparse.BooleanOptionalAction}
        elif flag.parse is on_off:
            # The value is optional: a following word that is not an allowed value is an error.
            options |= {"nargs": "?", "const": "on"}
        parser.add_argument(flag.name, dest=_PREFIX + flag.name, **hidden, **options)
    for name in REFUSED_FLAGS:
        action = _RefusedSwitch if name in REFUSED_SWITCHES else _Refusal
        options = {} if name in REFUSED_SWITCHES else {"nargs": "*"}
        parser.add_argument(name, action=action, **hidden, **options)
    parser.set_defaults(unused=())  # filled with messages about settings that have no effect
    parser.add_argument(
        "--config", dest="config_file", type=path, default=None, help=argparse.SUPPRESS
    )


class _RefusedSwitch(argparse.BooleanOptionalAction):
    """Refuses a switch that is on; the error names the alternative."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        name = self.option_strings[0]
        if option_string == name:
            message = f"argument {name}: is not supported: {REFUSED_FLAGS[name]}"
            raise argparse.ArgumentError(None, message)


class _Refusal(argparse.Action):
    """Refuses a flag; the error names the alternative."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        reason = REFUSED_FLAGS[self.option_strings[0]]
        raise argparse.ArgumentError(self, f"is not supported: {reason}")


def given_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the values of the given flags of other servers, by name."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }


def mapped_flags(arguments: argparse.Namespace) -> Settings:
    """Returns the settings for those flags of other servers that have a counterpart here."""
    given, settings = given_flags(arguments), Settings()
    for flag in FOREIGN_FLAGS:
        if flag.settings is not None and flag.name in given:
            settings |= Settings(flag.settings(given[flag.name]))
    return settings


def unused_flags(
    arguments: argparse.Namespace, used: Collection[str] = frozenset()
) -> Iterable[str]:
    """Returns a line for each given flag that has no effect, except those in `used`."""
    given = given_flags(arguments)
    for flag in FOREIGN_FLAGS:
        if flag.reason is None or flag.name not in given or flag.name in used:
            continue
        if given[flag.name] not in flag.neutral:
            yield f"{flag.name} is not used: {flag.reason}"


_NAMES: Final = {flag.field: flag.name for flag in reversed(FLAGS)}

ALIASES: Final[Mapping[str, str]] = {
    **{
        option.flag: _NAMES[option.field]
        for option in OVMS_OPTIONS
        if option.flag and option.field is not None and option.flag != _NAMES[option.field]
    },
    **OTHER_NAMES,
}
"""Other servers' names of flags that exist here."""

_API_KEY: Final = "--api-key"
_OF_MODELS: Final = ("--model", "--model-path", "--source-model", "--config-path")

MODES: Final = ("--pull", "--list-models", "--configure")
"""Switches of OVMS for commands other than serving."""

_NO: Final = "--no-"
"""The prefix of switches that are off."""

_ANYWHERE: Final = "0.0.0.0"
_ADDRESSES: Final = frozenset(("--host", "--rest-bind-address", "--listen", "--uds"))

SWITCHES: Final = frozenset(
    [
        *(flag.name for flag in FLAGS if flag.kind.parse is None),
        *(flag.name for flag in FOREIGN_FLAGS if flag.parse is None),
        *REFUSED_SWITCHES,
        *(name for name in ALIASES.values() if name.startswith(_NO)),
        *MODES,
    ]
)


def normalize_serve(line: Sequence[str]) -> list[str]:
    """Normalizes a command line of `serve`: as `normalize`, and repeats --api-key before each of
    several keys."""
    return _with_keys_apart(normalize(line))


def normalize(line: Sequence[str], *, has_short_names: bool = True) -> list[str]:
    """Normalizes a command line: underscores become dashes (`--max_num_seqs`), other servers' names
    become this server's flags, and switches with a value (`--allow_credentials true`) become
    switches.

    With `--rest_port` the line is OVMS's: `--port` is then for gRPC, and the default address is
    every interface.

    Args:
        has_short_names: whether short flags, such as `-tp`, are converted to long ones.
    """
    if has_short_names:
        line = [_long(argument) for argument in line]
    split = [_split(argument) for argument in line]
    names = {name for name, _ in split}
    is_ovms = "--rest-port" in names
    normal: list[str] = []
    for argument, (name, value) in zip(line, split, strict=True):
        if not argument.startswith("--"):
            if normal and normal[-1] in SWITCHES and argument.lower() in ("true", "false"):
                normal[-1] = _switch(normal[-1], argument)
            else:
                normal.append(argument)
            continue
        name = "--grpc-port" if is_ovms and name == "--port" else ALIASES.get(name, name)
        if name == "--help" and value is not None:  # vLLM's --help=all, --help=page and others
            name, value = "--help-all", None
        if value is None:
            normal.append(name)
        elif name in SWITCHES and value.lower() in ("true", "false"):
            normal.append(_switch(name, value))
        else:
            normal.append(f"{name}={value}")
    if is_ovms and not names & _ADDRESSES:
        normal += ["--host", _ANYWHERE]
    return normal


def _split(argument: str) -> tuple[str, str | None]:
    """Returns the name of a flag, with dashes, and its value after "="; None = no value."""
    if not argument.startswith("--"):
        return argument, None
    name, separator, value = argument.partition("=")
    return name.replace("_", "-"), value if separator else None


def _long(argument: str) -> str:
    """Returns the long form of a short flag such as `-tp`, `-tp=2` or `-O3`."""
    name, separator, value = argument.partition("=")
    if name in SHORT_NAMES:
        return f"{SHORT_NAMES[name]}{separator}{value}"
    if argument.startswith("-O"):
        return f"{SHORT_NAMES['-O']}={argument[2:]}"
    return argument


def _with_keys_apart(line: Sequence[str]) -> list[str]:
    """Repeats --api-key before each of several keys, which vLLM accepts after a single flag. If no
    model is named before, the second word may be the model and is left unchanged."""
    has_model = line[:1] != [] and not line[0].startswith("-")
    has_model |= any(argument.partition("=")[0] in _OF_MODELS for argument in line)
    apart: list[str] = []
    for argument in line:
        is_key = has_model and apart[-2:-1] == [_API_KEY] and not argument.startswith("-")
        apart += [_API_KEY, argument] if is_key else [argument]
    return apart


def _switch(name: str, value: str) -> str:
    if value.lower() == "true":
        return name
    return f"--{name.removeprefix(_NO)}" if name.startswith(_NO) else f"{_NO}{name[2:]}"


def explain_unknown(arguments: Sequence[str], known: Iterable[str]) -> str:
    """Returns the error message about unknown arguments, with suggestions from the `known`
    flags."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    if not flags:
        several = "; several models are --model NAME=MODEL each"
        return f"unexpected argument {arguments[0]}{several if '--model' in known else ''}"
    unused = {*REFUSED_FLAGS, *(flag.name for flag in FOREIGN_FLAGS if flag.settings is None)}
    offered = {name.lstrip("-"): name for name in known if name not in unused}
    return ", ".join(f"there is no flag {flag}{_hint(flag, offered)}" for flag in flags)


def _hint(flag: str, offered: Mapping[str, str]) -> str:
    name = SHORT_NAMES.get(flag, flag)
    name = ALIASES.get(name, name).lstrip("-")
    near = [name] if name in offered else get_close_matches(name, offered, 1, _NEAR)
    return f": did you mean {offered[near[0]]}?" if near else ""


_NEAR: Final = 0.7
"""The similarity of two names, from 0 to 1, from which one is suggested for the other."""
