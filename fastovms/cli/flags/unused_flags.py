"""Lists flags of OpenVINO Model Server and vLLM that have no use here.

They are accepted, so that a command line need not change, and each is told in one line of the log.
A wrong value is refused all the same: it would have been there. Those that change answers are
refused, with what to do instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from fastovms.cli.flags.flag_types import (
    choice,
    integer,
    json_object,
    media_limits,
    number,
    reader_of,
    text,
)
from fastovms.ovms.options import ALWAYS_IN_PARTS, LOG_FLAGS, ONE_DEVICE, OVMS_OPTIONS

_PREFIX: Final = "unused "


class ForeignFlag(NamedTuple):
    """A flag without use.

    Attributes:
        parse: reads its value; None = a switch, with a `--no-` form.
        reason: why it has no use; None = it takes its neutral values only.
        neutral: values that ask for nothing but what is done anyway, which need no word.
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
    """Adds these flags without a word in the help."""
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
    """Refuses a flag, with what to do instead."""

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
    """Returns the values of those that were given, by the flag's name."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }


def unused_flags(
    arguments: argparse.Namespace, used: Collection[str] = frozenset()
) -> Iterable[str]:
    """Returns a line for each flag that was given and has no use. Those in `used` have one for
    once."""
    given = given_flags(arguments)
    for flag in FOREIGN_FLAGS:
        if flag.reason is None or flag.name not in given or flag.name in used:
            continue
        if given[flag.name] not in flag.neutral:
            yield f"{flag.name} is not used: {flag.reason}"
