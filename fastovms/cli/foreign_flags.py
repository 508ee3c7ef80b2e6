"""Flags of OVMS and vLLM: aliases, and flags without use here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from fastovms.cli.flag import choice, integer, json_object, media_limits, number, reader_of, text
from fastovms.cli.flags import FLAGS
from fastovms.ovms.options import ALWAYS_IN_PARTS, LOG_FLAGS, ONE_DEVICE, OVMS_OPTIONS

# Lists flags of OpenVINO Model Server and vLLM that have no use here.
#
# They are accepted, so that a command line need not change, and each is told in one line of the
# log. A wrong value is refused all the same: it would have been there. Those that change answers
# are refused, with what to do instead.


_PREFIX: Final = "unused "


class ForeignFlag(NamedTuple):
    """A flag of another server that has no effect here.

    Attributes:
        parse: reads its value; None = a switch, with a `--no-` form.
        reason: why it has no effect; None = only neutral values are accepted.
        neutral: values that need no warning, because they ask for the behaviour that the server has
            anyway.
    """

    name: str
    parse: Callable[[str], object] | None
    reason: str | None
    neutral: tuple[object, ...] = ()


_FILES: Final = "the model's files say it"
_ALWAYS: Final = "it is always so"
_ONE_SERVER: Final = "one process answers"
_EXPORT: Final = "the exported graph says it: export the model with it"
_ADAPTERS: Final = "adapters are not loaded: merge them into the model before it is exported"

OVMS_FLAGS: Final = tuple(
    ForeignFlag(
        option.flag,
        None if option.kind is bool else reader_of(option.kind),
        option.unused,
        option.neutral,
    )
    for option in OVMS_OPTIONS
    if option.flag and option.field is None
)

VLLM_FLAGS: Final = (
    ForeignFlag(
        "--dtype", choice("auto", "half", "float16", "bfloat16", "float", "float32"),
        "--plugin-config has INFERENCE_PRECISION_HINT", ("auto",),
    ),
    ForeignFlag("--gpu-memory-utilization", number("shares"), "--cache-size bounds the KV cache"),
    ForeignFlag("--swap-space", number("GB"), "sequences that must wait are computed again", (0,)),
    ForeignFlag("--cpu-offload-gb", number("GB"), ONE_DEVICE, (0,)),
    ForeignFlag("--kv-cache-dtype", text, "see --kv-cache-precision", ("auto",)),
    ForeignFlag("--block-size", integer(1), "the device has one"),
    ForeignFlag("--enable-chunked-prefill", None, ALWAYS_IN_PARTS, (True,)),
    ForeignFlag("--seed", integer(-(2**63), 2**63 - 1), "every request has a seed of its own"),
    ForeignFlag("--tokenizer", text, _FILES),
    ForeignFlag("--tokenizer-mode", text, _FILES, ("auto",)),
    ForeignFlag("--load-format", text, _FILES, ("auto",)),
    ForeignFlag("--quantization", text, _FILES),
    ForeignFlag("--trust-remote-code", None, "no code of models is run", (False,)),
    ForeignFlag("--enforce-eager", None, "models are always compiled", (False,)),
    ForeignFlag("--tensor-parallel-size", integer(1), ONE_DEVICE, (1,)),
    ForeignFlag("--pipeline-parallel-size", integer(1), ONE_DEVICE, (1,)),
    ForeignFlag("--data-parallel-size", integer(1), ONE_DEVICE, (1,)),
    ForeignFlag("--scheduling-policy", choice("fcfs", "priority"), "priorities always count",
                ("priority",)),
    ForeignFlag("--async-scheduling", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-prompt-tokens-details", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-auto-tool-choice", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-request-id-headers", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-log-requests", None, LOG_FLAGS, (False,)),
    ForeignFlag("--disable-log-requests", None, LOG_FLAGS, (True,)),
    ForeignFlag("--enable-log-outputs", None, LOG_FLAGS, (False,)),
    ForeignFlag("--disable-log-stats", None, "/metrics costs nothing until it is asked", (False,)),
    ForeignFlag("--max-log-len", integer(0), LOG_FLAGS),
    ForeignFlag("--uvicorn-log-level", text, LOG_FLAGS),
    ForeignFlag("--guided-decoding-backend", text, "there is one, llguidance", ("auto",)),
    ForeignFlag("--structured-outputs-config", json_object, "there is one, llguidance"),
    ForeignFlag("--limit-mm-per-prompt", media_limits, "see --max-images"),
    ForeignFlag("--mm-processor-kwargs", json_object, _FILES),
    ForeignFlag("--shutdown-timeout", number("seconds"), "see --drain-timeout"),
    ForeignFlag("--download-dir", text, "see --model-repository-path"),
    ForeignFlag("--hf-token", text, "the environment's HF_TOKEN is heeded"),
    ForeignFlag("--tokenizer-revision", text, _FILES),
    ForeignFlag("--code-revision", text, "no code of models is run"),
    ForeignFlag("--model-impl", text, "models are OpenVINO's graphs", ("auto",)),
    ForeignFlag("--runner", text, "see --task", ("auto", "generate")),
    ForeignFlag("--convert", text, "see --task", ("auto", "none")),
    ForeignFlag("--compilation-config", text, "OpenVINO compiles as --plugin-config says"),
    ForeignFlag("--distributed-executor-backend", text, ONE_DEVICE),
    ForeignFlag("--max-seq-len-to-capture", integer(0), "there are no graphs of CUDA"),
    ForeignFlag("--num-scheduler-steps", integer(1), "every step is scheduled", (1,)),
    ForeignFlag("--stream-interval", integer(1), "every token is sent when it is there", (1,)),
    ForeignFlag("--api-server-count", integer(0), _ONE_SERVER, (1,)),
    ForeignFlag("--disable-frontend-multiprocessing", None, _ONE_SERVER, (True,)),
    ForeignFlag("--enable-server-load-tracking", None, "/metrics says how much runs and waits",
                (False,)),
    ForeignFlag("--h11-max-header-count", integer(1), "the server has a limit of its own"),
    ForeignFlag("--log-config-file", text, LOG_FLAGS),
    ForeignFlag("--disable-uvicorn-access-log", None, LOG_FLAGS, (False,)),
    ForeignFlag("--enable-reasoning", None, "see --reasoning-parser", (True,)),
)  # fmt: skip

REFUSED_FLAGS: Final[Mapping[str, str]] = {
    "--override-generation-config": "give --generation-config a file with these defaults",
    "--speculative-config": "--draft-model and --enable-prompt-lookup say how tokens are guessed",
    "--enable-force-include-usage": "streams have usage where requests ask for it, with "
    "stream_options",
    "--return-tokens-as-token-ids": "a request asks for it, with return_tokens_as_token_ids",
    "--exclude-tools-when-tool-choice-none": "a request that wants no tools names none",
    "--rope-scaling": _EXPORT,
    "--hf-overrides": _EXPORT,
    "--enable-lora": _ADAPTERS,
    "--lora-modules": _ADAPTERS,
    "--config": "flags stand in the command line or in VLLM_EXTRA_ARGS, and lists of models in the "
    "file of --config-path",
}
"""Flags of vLLM that change answers, and have no counterpart of their form: what to do instead."""

FOREIGN_FLAGS: Final = OVMS_FLAGS + VLLM_FLAGS


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Adds flags of other servers without showing them in the help."""
    for flag in FOREIGN_FLAGS:
        dest, default = _PREFIX + flag.name, argparse.SUPPRESS
        if flag.parse is None:
            parser.add_argument(
                flag.name,
                dest=dest,
                default=default,
                help=argparse.SUPPRESS,
                action=argparse.BooleanOptionalAction,
            )
        else:
            parser.add_argument(
                flag.name, dest=dest, default=default, help=argparse.SUPPRESS, type=flag.parse
            )

    for name in REFUSED_FLAGS:
        parser.add_argument(
            name, nargs="*", default=argparse.SUPPRESS, help=argparse.SUPPRESS, action=_Refusal
        )


class _Refusal(argparse.Action):
    """Refuses a flag with an error that names the replacement."""

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
    """Returns the values of the given flags without effect, by name."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }


def unused_flags(
    arguments: argparse.Namespace, used: Collection[str] = frozenset()
) -> Iterable[str]:
    """Returns a line for each flag that was given but has no effect. Flags in `used` are
    skipped."""
    given = given_flags(arguments)
    for flag in FOREIGN_FLAGS:
        if flag.reason is None or flag.name not in given or flag.name in used:
            continue
        if given[flag.name] not in flag.neutral:
            yield f"{flag.name} is not used: {flag.reason}"


# Puts a command line of OpenVINO Model Server or vLLM into this server's spelling.


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
"""Switches of OVMS for commands other than serving."""

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
COMMANDS: Final = (SERVE, PULL, TUNE, RUN_BATCH, BENCH, DOCTOR, CHAT, STATE, CACHE)
_FIRST_WORDS: Final = (*COMMANDS, "-h", "--help", "--version")
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
    """Normalizes a command line: underscores become dashes (`--max_num_seqs`), other servers' names
    become flags, and switches with a value (`--allow_credentials true`) become switches. Without a
    command, `serve` is added.

    With `--rest_port` the line is treated as OVMS's: `--port` is for gRPC, and the default address
    is every interface.
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
    """Returns the name of a flag, with dashes, and its value after "="."""
    if not argument.startswith("--"):
        return argument, None
    name, separator, value = argument.partition("=")
    return name.replace("_", "-"), value if separator else None


def _long(argument: str) -> str:
    """Returns the long form of a short flag, `-tp`, `-tp=2` or `-O3`."""
    name, separator, value = argument.partition("=")
    if name in _SHORT:
        return f"{_SHORT[name]}{separator}{value}"
    if argument.startswith("-O"):
        return f"{_SHORT['-O']}={argument[2:]}"
    return argument


def _with_keys_apart(line: Sequence[str]) -> list[str]:
    """Writes --api-key before each of several keys, which vLLM accepts after a single flag. If no
    model is named before, the second word may be the model and is kept."""
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
