"""Reads the environment variables of Runpod's vLLM worker, and the variable with the state URL.

Flags override variables. A variable that is empty counts as not set, as in the worker.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from fastovms.cli.flag import (
    boolean,
    integer,
    model_length,
    path,
    postgres_url,
    reader_of,
    root_path,
    template,
    text,
)
from fastovms.cli.flags import FLAGS
from fastovms.cli.foreign_flags import VLLM_FLAGS
from fastovms.config import (
    API,
    CHAT,
    ENGINE,
    HTTP,
    REPOSITORY,
    SOURCE,
    STATE,
    ConfigField,
    Settings,
)
from fastovms.errors import ConfigurationError
from fastovms.ovms.options import OVMS_OPTIONS


class Variable(NamedTuple):
    """One variable.

    Attributes:
        field: the configuration field that it sets.
        unset: values that count as not set.
    """

    name: str
    field: ConfigField
    parse: Callable[[str], object]
    unset: tuple[str, ...] = ()


def _names(value: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names between commas, not {value!r}")
    return names


def _flag(name: str) -> Callable[[str], object]:
    """Reads a value as the flag does."""
    [parse] = [flag.parse for flag in FLAGS if flag.name == name]
    assert parse is not None
    return parse


VARIABLES: Final = (
    Variable("MODEL_NAME", SOURCE.location, text),
    Variable("SERVED_MODEL_NAME", SOURCE.names, _names),
    Variable("OPENAI_SERVED_MODEL_NAME_OVERRIDE", SOURCE.names, _names),
    Variable("BASE_PATH", REPOSITORY.path, path),
    Variable("MAX_MODEL_LEN", ENGINE.max_model_len, model_length),
    Variable("MAX_NUM_SEQS", ENGINE.max_num_seqs, integer(1)),
    Variable("MAX_NUM_BATCHED_TOKENS", ENGINE.max_num_batched_tokens, integer(1), ("0",)),
    Variable("ENABLE_PREFIX_CACHING", ENGINE.enable_prefix_caching, boolean),
    Variable("MAX_LOGPROBS", API.max_logprobs, integer(-1)),
    Variable("ROOT_PATH", HTTP.root_path, root_path),
    Variable("CHAT_TEMPLATE", CHAT.chat_template, template),
    Variable("CUSTOM_CHAT_TEMPLATE", CHAT.chat_template, template),
    Variable("TOOL_CALL_PARSER", CHAT.tool_parser, _flag("--tool-parser")),
    Variable("REASONING_PARSER", CHAT.reasoning_parser, _flag("--reasoning-parser")),
    Variable("RESPONSE_ROLE", CHAT.response_role, text),
    Variable("OPENAI_RESPONSE_ROLE", CHAT.response_role, text),
    Variable("FASTOVMS_STATE_URL", STATE.state_url, postgres_url),
    *(
        Variable(option.variable, option.field, reader_of(option.kind))
        for option in OVMS_OPTIONS
        if option.variable and option.field is not None
    ),
)
"""The variables that are read. If two set the same value, the later one counts."""

IGNORED: Final[Mapping[str, str]] = {
    "RAW_OPENAI_OUTPUT": "answers are always those of the API",
    "DEFAULT_BATCH_SIZE": "every token is sent when it is there",
    "MAX_CONCURRENCY": "--max-queued-requests bounds what may wait",
    **{
        flag.name.removeprefix("--").replace("-", "_").upper(): flag.reason
        for flag in VLLM_FLAGS
        if flag.name in ("--quantization", "--gpu-memory-utilization", "--tensor-parallel-size")
        and flag.reason is not None
    },
    "VLLM_CONFIG_FILE": "flags and variables say it",
}
"""Variables of the worker that have no use here, with the reason."""

EXTRA_ARGUMENTS: Final = "VLLM_EXTRA_ARGS"


def extra_arguments(environ: Mapping[str, str]) -> list[str]:
    """Returns the flags in a variable. They override other variables and are overridden by the
    command line.

    Raises:
        ConfigurationError: the variable cannot be parsed.
    """
    try:
        return shlex.split(environ.get(EXTRA_ARGUMENTS, ""))
    except ValueError as error:
        raise ConfigurationError(f"{EXTRA_ARGUMENTS} in the environment: {error}") from None


def read_environment(environ: Mapping[str, str]) -> Settings:
    """Returns the settings from the environment.

    Raises:
        ConfigurationError: a variable is wrong.
    """
    given: dict[ConfigField, object] = {}
    for variable in VARIABLES:
        value = environ.get(variable.name, "").strip()
        if not value or value in variable.unset:
            continue
        try:
            given[variable.field] = variable.parse(value)
        except argparse.ArgumentTypeError as error:
            raise ConfigurationError(f"{variable.name} in the environment {error}") from None
    return Settings(given)


def unused_variables(environ: Mapping[str, str]) -> Iterable[str]:
    """Returns a line for each variable that is set but ignored."""
    for name, reason in IGNORED.items():
        if environ.get(name):
            yield f"{name} in the environment is not used: {reason}"
