"""Settings from environment variables, as in Runpod's vLLM worker, and from files of `vllm serve
--config`.

Priority: the command line, then VLLM_EXTRA_ARGS, then other variables, then the file. An empty
variable counts as not set, as in the worker.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from fastovms.cli.flag import BOOLEANS
from fastovms.cli.flags import FLAGS, add_flags, read_flags
from fastovms.cli.foreign_flags import (
    ALIASES,
    SWITCHES,
    add_foreign_flags,
    mapped_flags,
    normalize_serve,
    unused_flags,
)
from fastovms.cli.foreign_tables import VLLM_FLAGS, VLLM_NAMES, VLLM_REFUSED, reader_of
from fastovms.config import KEY_VARIABLES
from fastovms.errors import ConfigurationError
from fastovms.parts.ovms.options import OVMS_OPTIONS
from fastovms.server_config import SOURCE, ConfigField, Settings
from fastovms.setting import text

CONFIG_FILE: Final = "VLLM_CONFIG_FILE"
EXTRA_ARGUMENTS: Final = "VLLM_EXTRA_ARGS"

_RESERVED: Final = frozenset(
    ("--host", "--port", "--api-key", "--model", "--config", "--help", "--hf-token")
)
"""Flags without an environment variable of their name: Runpod's worker has none, or huggingface_hub
reads it itself (HF_TOKEN)."""

_ZERO_IS_UNSET: Final = frozenset(("MAX_NUM_BATCHED_TOKENS",))

VARIABLES: Final[Mapping[str, str]] = {
    **{
        name[2:].replace("-", "_").upper(): name
        for name in (*VLLM_NAMES, *(flag.name for flag in VLLM_FLAGS), *VLLM_REFUSED)
        if name not in _RESERVED
    },
    "BASE_PATH": "--model-repository-path",
    "MODEL_NAME": "--model",
    "MODEL_REVISION": "--revision",
    "TOKENIZER_NAME": "--tokenizer",
    "CUSTOM_CHAT_TEMPLATE": "--chat-template",
    "OPENAI_RESPONSE_ROLE": "--response-role",
    "SERVED_MODEL_NAME": "--served-model-name",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "--served-model-name",
    **{flag.variable: flag.name for flag in FLAGS if flag.variable},
}
"""The flag that each environment variable sets. If two variables set the same flag, the later one
in this order counts."""

IGNORED: Final[Mapping[str, str]] = {
    "RAW_OPENAI_OUTPUT": "answers are always those of the API",
    "DEFAULT_BATCH_SIZE": "every token is sent when it is there",
    "DEFAULT_MIN_BATCH_SIZE": "every token is sent when it is there",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "every token is sent when it is there",
    "MAX_CONCURRENCY": "--max-queued-requests bounds what may wait",
    "REQUEST_TIMEOUT": "a request runs as long as its client is connected",
    "VLLM_PORT": "see --port",
    "VLLM_STARTUP_TIMEOUT": "/health answers when the model is loaded",
}
"""Variables of Runpod's worker that have no effect here, with the reason."""


class _Given(NamedTuple):
    """A value from outside the command line.

    Attributes:
        source: the variable, or the file and key, for messages.
        flag: the flag that it sets, in this server's or vLLM's spelling.
    """

    source: str
    flag: str
    value: object


class FoundSettings(NamedTuple):
    """Settings, and a line for each value that has no effect."""

    settings: Settings
    unused: list[str]


def extra_arguments(environ: Mapping[str, str]) -> list[str]:
    """Returns the flags in the environment variable `EXTRA_ARGUMENTS`. Raises ConfigurationError if
    it cannot be parsed."""
    try:
        return shlex.split(environ.get(EXTRA_ARGUMENTS, ""))
    except ValueError as error:
        raise ConfigurationError(f"{EXTRA_ARGUMENTS} in the environment: {error}") from None


def all_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Returns the settings of a command line, the environment and the file named by either; earlier
    ones override later ones. Values without effect are added to the arguments as `unused`. Raises
    ConfigurationError if a value is invalid."""
    variables = read_environment(environ)
    settings, arguments.unused = variables.settings, variables.unused
    if getattr(arguments, "modelfile", None) is not None:
        of_modelfile = _read_modelfile(arguments)
        settings = of_modelfile.settings | settings
        arguments.unused = [*arguments.unused, *of_modelfile.unused]
    if "config_file" in arguments:
        path = arguments.config_file or environ.get(CONFIG_FILE, "").strip()
        if path:
            of_file = read_config_file(Path(path))
            settings = of_file.settings | settings
            arguments.unused += of_file.unused
    return settings | mapped_flags(arguments) | read_flags(arguments)


def _read_modelfile(arguments: argparse.Namespace) -> FoundSettings:
    """Returns the settings of an Ollama Modelfile. Raises ConfigurationError if it is invalid."""
    from fastovms.cli.modelfile import read_modelfile  # few starts read such a file

    of_line = (arguments.model, arguments.model_path, arguments.source_model)
    has_model = bool(arguments.models) or any(given is not None for given in of_line)
    found = read_modelfile(arguments.modelfile, has_model=has_model)
    read = _read(_Given(*flag) for flag in found.flags)
    return FoundSettings(read.settings, [*found.unused, *read.unused])


def read_environment(environ: Mapping[str, str]) -> FoundSettings:
    """Returns the settings from the environment. Raises ConfigurationError if a variable is
    invalid, or requests an unsupported feature."""
    found = _read(_given_variables(environ))
    given: dict[ConfigField, object] = {}
    for option in OVMS_OPTIONS:
        value = environ.get(option.variable, "").strip() if option.variable else ""
        if value and option.field is not None:
            given[option.field] = _parsed(option.variable, reader_of(option.kind), value)
    unused = [
        f"{name} in the environment is not used: {reason}"
        for name, reason in IGNORED.items()
        if environ.get(name)
    ]
    return FoundSettings(found.settings | Settings(given), [*found.unused, *unused])


def set_variables(environ: Mapping[str, str]) -> list[str]:
    """Returns the names of the variables that take effect, to be logged: a shell may have set one
    for another program."""
    known = [
        *KEY_VARIABLES,
        CONFIG_FILE,
        EXTRA_ARGUMENTS,
        *(name for name, flag in VARIABLES.items() if flag not in _WITHOUT_USE),
        *(option.variable for option in OVMS_OPTIONS if option.field is not None),
    ]
    return [name for name in known if environ.get(name, "").strip()]


_WITHOUT_USE: Final = frozenset(flag.name for flag in VLLM_FLAGS if flag.reason is not None)


def _given_variables(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name, flag in VARIABLES.items():
        value = environ.get(name, "").strip()
        if value and not (name in _ZERO_IS_UNSET and value == "0"):
            yield _Given(f"{name} in the environment", flag, value)


def _parsed(name: str, parse: Callable[[str], object], value: str) -> object:
    try:
        return parse(value)
    except argparse.ArgumentTypeError as error:
        raise ConfigurationError(f"{name} in the environment {error}") from None


def read_config_file(path: Path) -> FoundSettings:
    """Returns the settings of a file of `vllm serve --config`: a YAML object with flag names as
    keys, with dashes or underscores. Raises ConfigurationError if the file cannot be read, or a key
    or value is invalid."""
    import yaml  # few starts read such a file

    try:
        members = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    if members is None:
        return FoundSettings(Settings(), [])
    if not isinstance(members, dict) or not all(isinstance(name, str) for name in members):
        raise ConfigurationError(f"{path} must be a YAML object whose members are named by flags")
    return _read(
        _Given(f"{name} in {path}", f"--{name.lstrip('-').replace('_', '-')}", value)
        for name, value in members.items()
        if value is not None
    )


def _read(given: Iterable[_Given]) -> FoundSettings:
    """Returns the settings of several values; later ones override earlier ones. Raises
    ConfigurationError if one is invalid."""
    settings, unused = Settings(), []
    parser = None
    for source, flag, value in given:
        parser = parser or _flag_parser()
        arguments = parser.read(source, flag, value)
        try:
            settings |= mapped_flags(arguments) | read_flags(arguments)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from None
        if arguments.model is not None:
            settings |= Settings({SOURCE.location: arguments.model})
        if arguments.names:
            settings |= Settings({SOURCE.names: tuple(arguments.names)})
        for line in unused_flags(arguments):
            unused.append(f"{source} is not used{line.partition(' is not used')[2]}")
    return FoundSettings(settings, unused)


class _FlagParser(argparse.ArgumentParser):
    """Parses one flag at a time, and raises ConfigurationError if it is invalid."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(re.sub(r"^argument \S+: ", "", message))

    def read(self, source: str, flag: str, value: object) -> argparse.Namespace:
        """Returns the parsed flag. Raises ConfigurationError if the flag is unknown or the value
        invalid.

        Args:
            source: the variable, or the file and key, for messages.
            value: a string, or a YAML value.
        """
        known = self._option_string_actions
        name = ALIASES.get(flag, flag)
        if name not in known or flag in ("--config", "--help"):
            raise ConfigurationError(f"{source} is not a flag that a file or a variable may set")
        try:
            return self.parse_args(normalize_serve(self._line(flag, value)))
        except ConfigurationError as error:
            raise ConfigurationError(f"{source} {error}") from None

    def _line(self, flag: str, value: object) -> list[str]:
        """Returns the flag and its value as words of a command line."""
        if flag in SWITCHES or ALIASES.get(flag) in SWITCHES or f"--no-{flag[2:]}" in SWITCHES:
            is_on = value if isinstance(value, bool) else BOOLEANS.get(str(value).lower())
            if is_on is None:
                raise ConfigurationError(f"must be true or false, not {value!r}")
            return [f"{flag}={str(is_on).lower()}"]
        values: list[Any] = value if isinstance(value, list) else [value]
        if isinstance(value, list) and flag not in _REPEATED:
            values = [json.dumps(value)]
        return [f"{flag}={part if isinstance(part, str) else json.dumps(part)}" for part in values]


_REPEATED: Final = frozenset(
    ("--served-model-name", *(flag.name for flag in FLAGS if flag.repeats or flag.merges))
)


def _served_names(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names between commas, not {value!r}")
    return names


def _flag_parser() -> _FlagParser:
    parser = _FlagParser(allow_abbrev=False)
    parser.add_argument("--model", type=text, default=None)
    parser.add_argument(
        "--served-model-name", dest="names", type=_served_names, action="extend", default=[]
    )
    add_flags(parser)
    add_foreign_flags(parser)
    return parser
