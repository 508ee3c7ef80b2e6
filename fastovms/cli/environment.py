"""The environment in which Runpod's vLLM worker finds its configuration.

Flags go before it. A variable that is empty counts as not set, as in the worker.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fastovms.cli.flag_types import boolean, integer, model_length, path, root_path, template, text
from fastovms.cli.flags import GROUPS
from fastovms.errors import ConfigurationError


class Variable(NamedTuple):
    """One variable.

    Attributes:
        target: the "section.field" of the configuration that it sets.
        unset: values that count as not set.
    """

    name: str
    target: str
    parse: Callable[[str], object]
    unset: tuple[str, ...] = ()


def _names(value: str) -> tuple[str, ...]:
    """Names between commas."""
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names between commas, not {value!r}")
    return names


def _flag(name: str) -> Callable[[str], object]:
    """Reads as the flag does."""
    [parse] = [flag.parse for flags in GROUPS.values() for flag in flags if flag.name == name]
    assert parse is not None
    return parse


VARIABLES: Final = (
    Variable("MODEL_NAME", "source.model", text),
    Variable("SERVED_MODEL_NAME", "source.names", _names),
    Variable("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "source.names", _names),
    Variable("BASE_PATH", "repository.path", path),
    Variable("OVMS_MODEL_REPOSITORY_PATH", "repository.path", path),
    Variable("MAX_MODEL_LEN", "engine.max_model_len", model_length),
    Variable("MAX_NUM_SEQS", "engine.max_num_seqs", integer(1)),
    Variable("MAX_NUM_BATCHED_TOKENS", "engine.max_num_batched_tokens", integer(1), ("0",)),
    Variable("ENABLE_PREFIX_CACHING", "engine.enable_prefix_caching", boolean),
    Variable("MAX_LOGPROBS", "api.max_logprobs", integer(-1)),
    Variable("OVMS_MEDIA_URL_ALLOW_REDIRECTS", "media.allow_media_redirects", boolean),
    Variable("ROOT_PATH", "http.root_path", root_path),
    Variable("CHAT_TEMPLATE", "chat.chat_template", template),
    Variable("CUSTOM_CHAT_TEMPLATE", "chat.chat_template", template),
    Variable("TOOL_CALL_PARSER", "chat.tool_parser", _flag("--tool-parser")),
    Variable("REASONING_PARSER", "chat.reasoning_parser", _flag("--reasoning-parser")),
    Variable("RESPONSE_ROLE", "chat.response_role", text),
    Variable("OPENAI_RESPONSE_ROLE", "chat.response_role", text),
)
"""What is read. Of two that set the same, the later one counts."""

IGNORED: Final[Mapping[str, str]] = {
    "RAW_OPENAI_OUTPUT": "answers are always those of the API",
    "DEFAULT_BATCH_SIZE": "every token is sent when it is there",
    "MAX_CONCURRENCY": "--max-queued-requests bounds what may wait",
    "QUANTIZATION": "the model's files say it",
    "GPU_MEMORY_UTILIZATION": "--cache-size bounds the KV cache",
    "TENSOR_PARALLEL_SIZE": "a model runs on one device",
    "VLLM_CONFIG_FILE": "flags and variables say it",
}
"""Variables of the worker that have no use here, with the reason."""

EXTRA_ARGUMENTS: Final = "VLLM_EXTRA_ARGS"


def extra_arguments(environ: Mapping[str, str]) -> list[str]:
    """Flags that go before variables and behind those of the command line. Raises
    ConfigurationError."""
    try:
        return shlex.split(environ.get(EXTRA_ARGUMENTS, ""))
    except ValueError as error:
        raise ConfigurationError(f"{EXTRA_ARGUMENTS} in the environment: {error}") from None


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the environment sets, by "section.field".

    Raises:
        ConfigurationError: a variable is wrong.
    """
    settings: dict[str, Any] = {}
    for variable in VARIABLES:
        value = environ.get(variable.name, "").strip()
        if not value or value in variable.unset:
            continue
        try:
            settings[variable.target] = variable.parse(value)
        except argparse.ArgumentTypeError as error:
            raise ConfigurationError(f"{variable.name} in the environment {error}") from None
    return settings


def unused_variables(environ: Mapping[str, str]) -> Iterable[str]:
    """A line for each that is set and has no use."""
    for name, reason in IGNORED.items():
        if environ.get(name):
            yield f"{name} in the environment is not used: {reason}"
