"""Flags of OpenVINO Model Server and vLLM that have no use here.

They are accepted, so that a command line need not change, and each is told in one line of the log.
A wrong value is refused all the same: it would have been there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from fastovms.cli.flag_types import choice, integer, json_object, name_of, number, path, text

_PREFIX: Final = "unused "


class ForeignFlag(NamedTuple):
    """A flag without use.

    Attributes:
        parse: None = a switch, with a `--no-` form.
        reason: why it has none.
        neutral: values that ask for nothing but what is done anyway, which need no word.
    """

    name: str
    parse: Callable[[str], object] | None
    reason: str
    neutral: tuple[object, ...] = ()


_GRPC: Final = "there is no gRPC here"
_TENSORS: Final = "it is about models of tensors"
_EXPORT: Final = "models are pulled as they are"
_FILES: Final = "the model's files say it"
_ONE_PROCESS: Final = "a model runs on one device"
_ALWAYS: Final = "it is always so"
_LOGGED: Final = "--log-level and --access-log say what is logged"

OVMS_FLAGS: Final = (
    ForeignFlag("--grpc-port", integer(0, 65535), _GRPC, (0,)),
    ForeignFlag("--grpc-bind-address", text, _GRPC),
    ForeignFlag("--grpc-workers", integer(1), _GRPC),
    ForeignFlag("--grpc-max-threads", integer(1), _GRPC),
    ForeignFlag("--grpc-memory-quota", integer(1), _GRPC),
    ForeignFlag("--grpc-channel-arguments", text, _GRPC),
    ForeignFlag("--rest-workers", integer(1), "one event loop serves every connection"),
    ForeignFlag("--task", choice("text_generation"), "", ("text_generation",)),
    ForeignFlag(
        "--pipeline-type", name_of("AUTO", "LM", "VLM", "LM_CB", "VLM_CB", "OMNI"),
        "the model's files say what it is, and batching is always continuous", ("AUTO", "LM_CB"),
    ),
    ForeignFlag("--dynamic-split-fuse", None, "long prompts are always computed in parts", (True,)),
    ForeignFlag(
        "--enable-tool-guided-generation", None, "a request asks for it with tool_choice", (False,)
    ),
    ForeignFlag("--max-prompt-len", integer(1), "it is for NPUs"),
    ForeignFlag("--cache-interval-multiplier", integer(1), "it is for linear attention"),
    ForeignFlag(
        "--model-distribution-policy", name_of("TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
        _ONE_PROCESS,
    ),
    ForeignFlag(
        "--file-system-poll-wait-seconds", integer(0), "models are loaded once, at start", (0,)
    ),
    ForeignFlag("--metrics-list", text, "every metric is exported"),
    ForeignFlag("--verbose-response", None, "answers hold what the request asks for", (False,)),
    ForeignFlag("--weight-format", text, _EXPORT),
    ForeignFlag("--extra-quantization-params", text, _EXPORT),
    ForeignFlag("--cpu-extension", path, "there are no custom layers in language models"),
    ForeignFlag("--batch-size", text, _TENSORS),
    ForeignFlag("--shape", text, _TENSORS),
    ForeignFlag("--layout", text, _TENSORS),
    ForeignFlag("--model-version-policy", text, _TENSORS),
    ForeignFlag("--nireq", integer(0), _TENSORS, (0,)),
    ForeignFlag("--stateful", None, _TENSORS, (False,)),
    ForeignFlag("--idle-sequence-cleanup", None, _TENSORS, (False,)),
    ForeignFlag("--low-latency-transformation", None, _TENSORS, (False,)),
    ForeignFlag("--max-sequence-number", integer(0), _TENSORS),
    ForeignFlag("--sequence-cleaner-poll-wait-minutes", integer(0), _TENSORS),
    ForeignFlag("--custom-node-resources-cleaner-interval-seconds", integer(0), _TENSORS),
    ForeignFlag("--trace-path", path, _LOGGED),
)  # fmt: skip

VLLM_FLAGS: Final = (
    ForeignFlag(
        "--dtype", choice("auto", "half", "float16", "bfloat16", "float", "float32"),
        "--plugin-config has INFERENCE_PRECISION_HINT", ("auto",),
    ),
    ForeignFlag("--gpu-memory-utilization", number("shares"), "--cache-size bounds the KV cache"),
    ForeignFlag("--swap-space", number("GB"), "sequences that must wait are computed again", (0,)),
    ForeignFlag("--cpu-offload-gb", number("GB"), _ONE_PROCESS, (0,)),
    ForeignFlag("--kv-cache-dtype", text, "see --kv-cache-precision", ("auto",)),
    ForeignFlag("--block-size", integer(1), "the device has one"),
    ForeignFlag("--enable-chunked-prefill", None, "long prompts are always computed in parts",
                (True,)),
    ForeignFlag("--seed", integer(-(2**63), 2**63 - 1), "every request has a seed of its own"),
    ForeignFlag("--tokenizer", text, _FILES),
    ForeignFlag("--tokenizer-mode", text, _FILES, ("auto",)),
    ForeignFlag("--load-format", text, _FILES, ("auto",)),
    ForeignFlag("--quantization", text, _FILES),
    ForeignFlag("--trust-remote-code", None, "no code of models is run", (False,)),
    ForeignFlag("--enforce-eager", None, "models are always compiled", (False,)),
    ForeignFlag("--tensor-parallel-size", integer(1), _ONE_PROCESS, (1,)),
    ForeignFlag("--pipeline-parallel-size", integer(1), _ONE_PROCESS, (1,)),
    ForeignFlag("--data-parallel-size", integer(1), _ONE_PROCESS, (1,)),
    ForeignFlag("--scheduling-policy", choice("fcfs", "priority"), "priorities always count",
                ("priority",)),
    ForeignFlag("--async-scheduling", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-prompt-tokens-details", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-auto-tool-choice", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-request-id-headers", None, _ALWAYS, (True,)),
    ForeignFlag("--enable-log-requests", None, _LOGGED, (False,)),
    ForeignFlag("--disable-log-requests", None, _LOGGED, (True,)),
    ForeignFlag("--enable-log-outputs", None, _LOGGED, (False,)),
    ForeignFlag("--disable-log-stats", None, "/metrics costs nothing until it is asked", (False,)),
    ForeignFlag("--disable-fastapi-docs", None, "there are none", (True,)),
    ForeignFlag("--max-log-len", integer(0), _LOGGED),
    ForeignFlag("--uvicorn-log-level", text, _LOGGED),
    ForeignFlag("--guided-decoding-backend", text, "there is one, llguidance", ("auto",)),
    ForeignFlag("--structured-outputs-config", json_object, "there is one, llguidance"),
    ForeignFlag("--limit-mm-per-prompt", json_object, "see --max-images"),
    ForeignFlag("--shutdown-timeout", number("seconds"), "see --drain-timeout"),
)  # fmt: skip

FOREIGN_FLAGS: Final = OVMS_FLAGS + VLLM_FLAGS


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them without a word in the help."""
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


def given_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """Their values, by the flag's name."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }


def unused_flags(
    arguments: argparse.Namespace, used: Collection[str] = frozenset()
) -> Iterable[str]:
    """A line for each that was given and has no use. `used` have one for once."""
    given = given_flags(arguments)
    for flag in FOREIGN_FLAGS:
        if flag.name in given and flag.name not in used and given[flag.name] not in flag.neutral:
            yield f"{flag.name} is not used: {flag.reason}"
