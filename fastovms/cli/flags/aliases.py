"""Puts a command line of OpenVINO Model Server or vLLM into this server's spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fastovms.cli.flags.flags import FLAGS
from fastovms.cli.flags.unused_flags import FOREIGN_FLAGS
from fastovms.ovms.options import OVMS_OPTIONS

_NAMES: Final = {flag.field: flag.name for flag in reversed(FLAGS)}

ALIASES: Final[Mapping[str, str]] = {
    **{
        option.flag: _NAMES[option.field]
        for option in OVMS_OPTIONS
        if option.flag and option.field is not None and option.flag != _NAMES[option.field]
    },
    "--tool-call-parser": "--tool-parser",
    "--disable-fastapi-docs": "--no-enable-docs",
    "--no-disable-fastapi-docs": "--enable-docs",
}
"""Other servers' names for flags that mean the same here."""

_SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-O": "--compilation-config",
}
"""Short forms of vLLM's."""

_API_KEY: Final = "--api-key"
_OF_MODELS: Final = ("--model", "--model-path", "--source-model", "--config-path")

MODES: Final = ("--pull", "--list-models", "--configure")
"""Switches of OVMS that ask for something else than serving."""

_NO: Final = "--no-"
"""What the name of a switch that is off begins with."""

_ANYWHERE: Final = "0.0.0.0"
_ADDRESSES: Final = frozenset(("--host", "--rest-bind-address", "--listen", "--uds"))

SERVE: Final = "serve"
PULL: Final = "pull"
TUNE: Final = "tune"
RUN_BATCH: Final = "run-batch"
BENCH: Final = "bench"
DOCTOR: Final = "doctor"
STATE: Final = "state"
CACHE: Final = "cache"
CHAT: Final = "chat"
_COMMANDS: Final = (SERVE, PULL, TUNE, RUN_BATCH, BENCH, DOCTOR, CHAT, STATE, CACHE)
_FIRST_WORDS: Final = (*_COMMANDS, "-h", "--help", "--version")
"""What a line begins with that is not one of `serve` without its name."""

_SWITCHES: Final = frozenset(
    [
        *(flag.name for flag in FLAGS if flag.parse is None),
        *(flag.name for flag in FOREIGN_FLAGS if flag.parse is None),
        *(name for name in ALIASES.values() if name.startswith(_NO)),
        *MODES,
    ]
)


def normalize(argv: Sequence[str]) -> list[str]:
    """Reads underscores as dashes (`--max_num_seqs`), other servers' names for flags, switches with
    a value (`--allow_credentials true`), and a line that has no command, such as an empty one, as
    one of `serve`.

    With `--rest_port` in it the line is OVMS's, whose `--port` is for gRPC, and which listens on
    every address unless it is told otherwise.
    """
    split = [_split(argument) for argument in argv]
    names = {name for name, _ in split}
    is_ovms = "--rest-port" in names
    normal: list[str] = []
    if not split or split[0][0] not in _FIRST_WORDS:
        normal.append(SERVE)
    for argument, (name, value) in zip(argv, split, strict=True):
        if not argument.startswith("--"):
            if normal and normal[-1] in _SWITCHES and argument.lower() in ("true", "false"):
                normal[-1] = _switch(normal[-1], argument)
            else:
                normal.append(argument)
            continue
        name = "--grpc-port" if is_ovms and name == "--port" else ALIASES.get(name, name)
        if value is None:
            normal.append(name)
        elif name in _SWITCHES and value.lower() in ("true", "false"):
            normal.append(_switch(name, value))
        else:
            normal.append(f"{name}={value}")
    if normal[0] in (SERVE, RUN_BATCH):
        normal = [_long(argument) for argument in normal]
    if normal[0] == SERVE:
        normal = _with_keys_apart(normal)
    if is_ovms and not names & _ADDRESSES:
        normal += ["--host", _ANYWHERE]
    return normal


def _split(argument: str) -> tuple[str, str | None]:
    """Returns the name of a flag, with dashes, and the value that is given with it."""
    if not argument.startswith("--"):
        return argument, None
    name, separator, value = argument.partition("=")
    return name.replace("_", "-"), value if separator else None


def _long(argument: str) -> str:
    """Returns the long form of a short one, `-tp`, `-tp=2` or `-O3`."""
    name, separator, value = argument.partition("=")
    if name in _SHORT:
        return f"{_SHORT[name]}{separator}{value}"
    if argument.startswith("-O"):
        return f"{_SHORT['-O']}={argument[2:]}"
    return argument


def _with_keys_apart(line: Sequence[str]) -> list[str]:
    """Writes --api-key before each of several keys, as vLLM takes them behind one. Where the line
    has no model before them, the second word may be that, and stays."""
    has_model = line[1:2] != [] and not line[1].startswith("-")
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
