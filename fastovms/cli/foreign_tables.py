"""Tables of flags and commands of OVMS, vLLM, llama.cpp and Ollama that this server does not have.

A flag without effect is accepted, so that command lines need not change, and is logged; an invalid
value is refused. A flag that would change answers is refused, with the alternative. vLLM's flags
are those of 0.27.1, as listed by Runpod's worker, and flags that vLLM has removed since 0.9; newer
flags are unknown. llama.cpp's flags are llama-server's as of November 2026.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.cli.flag import boolean, media_limits
from fastovms.config import OWN_HEAD
from fastovms.parts.ovms.options import (
    ALWAYS_IN_PARTS,
    LOG_FLAGS,
    ONE_DEVICE,
    OVMS_OPTIONS,
    STEP_TOKENS,
    Choice,
    Integer,
    Kind,
)
from fastovms.server_config import CHAT, ENCODER, ENGINE, FILES, SERVICE, ConfigField
from fastovms.setting import choice, integer, json_object, name_of, number, path, text


class ForeignFlag(NamedTuple):
    """A flag that is accepted without effect, or mapped to settings.

    Attributes:
        parse: parses its value; None = a switch, with a `--no-` form.
        reason: why the flag has no effect; None = only neutral values are accepted.
        neutral: values that would have no effect in the other server either; these are not logged.
        settings: returns the settings that correspond to a value, if this server has them.
    """

    name: str
    parse: Callable[[str], object] | None
    reason: str | None
    neutral: tuple[object, ...] = ()
    settings: Callable[[Any], dict[ConfigField, object]] | None = None


def _speculative_config(value: str) -> dict[ConfigField, object]:
    """Parses vLLM's JSON object: drafts come from a draft model, from the model's own head, or from
    earlier text."""
    config = json_object(value)
    method, model = config.get("method"), config.get("model")
    if method == "mtp" or str(method).endswith("_mtp"):  # vLLM's older names are of architectures
        return {ENGINE.draft_model: Path(model) if isinstance(model, str) else OWN_HEAD}
    if "ngram" in (method, model) or method == "suffix":
        return {ENGINE.enable_prompt_lookup: True}
    if isinstance(model, str) and model and method in (None, "draft_model", "eagle3"):
        return {ENGINE.draft_model: Path(model)}
    raise argparse.ArgumentTypeError(
        'must have a "model" that drafts, or the "method" mtp, which drafts with the model\'s own '
        f"head, or ngram or suffix, which draft from earlier text, not {value!r}"
    )


def _spec_method(value: str) -> dict[ConfigField, object]:
    method = choice("ngram", "suffix", "draft_model", "eagle3", "mtp")(value)
    if method == "mtp":
        return {ENGINE.draft_model: OWN_HEAD}
    return {ENGINE.enable_prompt_lookup: True} if method in ("ngram", "suffix") else {}


def _spec_model(value: str) -> dict[ConfigField, object]:
    return {ENGINE.draft_model: Path(value)}


def _without_use(reason: str, names: str, switches: str = "") -> tuple[ForeignFlag, ...]:
    """Returns flags without effect, all for the same reason.

    Args:
        names: the flags with a value, without leading dashes, separated by spaces.
        switches: the flags without a value. A switch is logged only if it is on.
    """
    return (
        *(ForeignFlag(f"--{name}", text, reason) for name in names.split()),
        *(ForeignFlag(f"--{name}", None, reason, (False,)) for name in switches.split()),
    )


_FILES: Final = "the model's files say it"
_ALWAYS: Final = "it is always so"
_ONE_SERVER: Final = "one server process answers"
_EXPORT: Final = "the exported graph says it: export the model with it"
_DEVICE: Final = "--device chooses the device that runs the whole model"
_ADAPTERS: Final = "adapters are served as --lora-modules, --max-loras and --max-lora-rank say"


def reader_of(kind: Kind) -> Callable[[str], object]:
    """Returns a parser for values of an option of OpenVINO Model Server."""
    match kind:
        case Integer(low, high):
            return integer(low, high)
        case Choice(names, ignores_case):
            return choice(*names) if ignores_case else name_of(*names)
    if kind is bool:
        return boolean
    return path if kind is Path else text


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
    ForeignFlag("--speculative-config", _speculative_config, None, settings=dict),
    ForeignFlag("--spec-method", _spec_method, None, settings=dict),
    ForeignFlag("--spec-model", text, None, settings=_spec_model),
    ForeignFlag("--logprobs-mode", choice("raw_logprobs"), None),
    ForeignFlag("--ssl-cert-reqs", integer(0, 0), None),
    *_without_use("the number of drafts is what pays on this machine", "spec-tokens"),
    *_without_use(
        ONE_DEVICE,
        "all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds "
        "data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port "
        "data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port "
        "dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend "
        "dcp-kv-cache-interleave-size decode-context-parallel-size device-ids "
        "distributed-timeout-seconds dp-supervisor-probe-failure-threshold "
        "dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s ec-transfer-config "
        "eplb-config expert-placement-strategy fault-tolerance-config kv-transfer-config "
        "master-addr master-port nnodes node-rank num-redundant-experts "
        "prefill-context-parallel-size weight-transfer-config worker-cls "
        "worker-extension-cls",
        "data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb "
        "disable-custom-all-reduce disable-nccl-for-dp-synchronization enable-dbo "
        "enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel "
        "enable-fault-tolerance eplb-log-balancedness headless numa-bind ray-workers-use-nsight",
    ),
    *_without_use(
        "OpenVINO chooses its kernels: see --plugin-config and fastovms tune",
        "additional-config attention-backend attention-config cuda-graph-sizes "
        "cudagraph-capture-sizes diffusion-config gdn-prefill-backend ir-op-priority "
        "kda-prefill-backend kernel-config linear-backend mamba-backend "
        "mamba-cache-philox-rounds mamba-ssu-algorithm max-context-len-to-capture "
        "max-cudagraph-capture-size moe-backend numa-bind-cpus numa-bind-nodes "
        "optimization-level override-attention-dtype performance-mode replayssm-buffer-len",
        "cudagraph-metrics disable-cascade-attn enable-bf16x3-router-gemm "
        "enable-flash-late-interaction enable-flashinfer-autotune enable-layerwise-nvtx-tracing "
        "enable-mamba-cache-stochastic-rounding jit-monitor-verbose use-fp64-gumbel use-replayssm",
    ),
    *_without_use(
        "the KV cache has one form: see --cache-size and --kv-cache-precision",
        "kv-cache-dtype-skip-layers kv-cache-memory-bytes mamba-block-size mamba-cache-dtype "
        "mamba-cache-mode mamba-ssm-cache-dtype num-gpu-blocks-override prefix-caching-hash-algo "
        "prefix-match-unit",
        "calculate-kv-scales disable-hybrid-kv-cache-manager disable-sliding-window "
        "enable-cumem-allocator kv-cache-metrics kv-sharing-fast-prefill",
    ),
    *_without_use(
        "see --prefix-cache-dir",
        "kv-events-config kv-offloading-backend kv-offloading-size",
    ),
    *_without_use(
        "the weights stay in memory",
        "cpu-offload-params offload-backend offload-group-size offload-num-in-group "
        "offload-params offload-prefetch-step",
        "enable-sleep-mode",
    ),
    *_without_use(
        _FILES,
        "cohere-format config-format hf-config-path ignore-patterns "
        "max-parallel-loading-workers model-class-overrides model-loader-extra-config "
        "pt-load-map-location quantization-config safetensors-load-strategy "
        "safetensors-prefetch-block-size safetensors-prefetch-num-threads",
        "allow-deprecated-quantization cohere-is-reasoning-model use-tqdm-on-load",
    ),
    *_without_use(
        "the scheduler decides it by measuring: see --max-num-batched-tokens",
        "long-prefill-token-threshold max-long-partial-prefills max-num-partial-prefills "
        "max-num-scheduled-tokens num-lookahead-slots prefill-schedule-interval scheduler-cls "
        "watermark",
        "scheduler-reserve-full-isl",
    ),
    *_without_use(
        _ADAPTERS,
        "default-mm-loras lora-dtype lora-extra-vocab-size lora-target-modules max-cpu-loras",
        "enable-lora-bias enable-mixed-moe-lora-format enable-moe-shared-loras "
        "enable-tower-connector-lora fully-sharded-loras specialize-active-lora",
    ),
    *_without_use(
        "images are read in processes of their own: see --max-images and --shrink-images-to",
        "media-io-kwargs mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path "
        "mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode "
        "mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type "
        "mm-shm-cache-max-object-size-mb mm-tensor-ipc renderer-num-workers video-pruning-method "
        "video-pruning-rate",
        "disable-chunked-mm-input disable-mm-preprocessor-cache enable-mm-embeds "
        "enable-multimodal-encoder-data-parallel interleave-mm-strings language-model-only "
        "mm-encoder-only skip-mm-profiling",
    ),
    *_without_use(
        "/metrics and traces have what the server measures: see --otlp-traces-endpoint",
        "collect-detailed-traces jit-monitor-mode kv-cache-metrics-sample profiler-config "
        "show-hidden-metrics-for-version",
        "aggregate-engine-logging enable-logging-iteration-details enable-mfu-metrics "
        "enable-return-routed-experts",
    ),
    *_without_use(
        LOG_FLAGS, "disable-access-log-for-endpoints", "enable-log-deltas log-error-stack"
    ),
    *_without_use(
        "the limits are --max-head and --max-header-fields", "h11-max-incomplete-event-size"
    ),
    *_without_use(
        "answers name the server and its version", "fingerprint-mode fingerprint-value"
    ),
    *_without_use("see --reasoning-budget-message", "reasoning-config"),
    *_without_use(STEP_TOKENS, "ubatch-size"),
    *_without_use("see --pooling", "pooler-config override-pooler-config"),
    *_without_use(
        "there is one, llguidance",
        "",
        "guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace "
        "guided-decoding-disable-fallback",
    ),
    *_without_use("SIGHUP has the server read new certificates", "", "enable-ssl-refresh"),
    *_without_use("/docs needs no network", "", "enable-offline-docs"),
    *_without_use("requests take texts and token ids", "", "enable-prompt-embeds"),
    *_without_use("there is no such endpoint", "", "enable-tokenizer-info-endpoint"),
    *_without_use("variables are checked at the start", "", "fail-on-environ-validation"),
    *_without_use("models have their tokenizer", "", "skip-tokenizer-init tokens-only"),
)  # fmt: skip

_NO_CODE: Final = "code of others is loaded by entry points: see the page of extensions"

VLLM_REFUSED: Final[Mapping[str, str]] = {
    "--enable-force-include-usage": "streams have usage where requests ask for it, with "
    "stream_options",
    "--return-tokens-as-token-ids": "a request asks for it, with return_tokens_as_token_ids",
    "--exclude-tools-when-tool-choice-none": "a request that wants no tools names none",
    "--rope-scaling": _EXPORT,
    "--rope-theta": _EXPORT,
    "--hf-overrides": _EXPORT,
    "--logits-processors": _NO_CODE,
    "--logits-processor-pattern": _NO_CODE,
    "--middleware": _NO_CODE,
    "--io-processor-plugin": _NO_CODE,
    "--tool-parser-plugin": _NO_CODE,
    "--reasoning-parser-plugin": _NO_CODE,
    "--tool-server": "clients call tools themselves",
    "--ssl-ca-certs": "certificates of clients are not checked here: put a proxy before the server",
    "--ssl-ciphers": "the ciphers are those of the system's OpenSSL",
    "--grpc": "the server speaks HTTP",
}

REFUSED_SWITCHES: Final = frozenset(
    (
        "--enable-force-include-usage",
        "--return-tokens-as-token-ids",
        "--exclude-tools-when-tool-choice-none",
        "--grpc",
        "--ignore-eos",
        "--special",
        "--agent",
        "--offline",
    )
)
"""Those of the flags above that are switches. A switch that is off has no effect."""

VLLM_NAMES: Final = (
    "--allow-credentials", "--allowed-headers", "--allowed-local-media-path",
    "--allowed-media-domains", "--allowed-methods", "--allowed-origins", "--chat-template",
    "--chat-template-content-format", "--default-chat-template-kwargs", "--disable-fastapi-docs",
    "--enable-lora", "--enable-per-request-metrics", "--enable-prefix-caching",
    "--generation-config", "--lora-modules", "--max-logprobs", "--max-lora-rank", "--max-loras",
    "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs",
    "--otlp-traces-endpoint", "--override-generation-config", "--reasoning-parser",
    "--response-role", "--revision", "--root-path", "--ssl-certfile", "--ssl-keyfile", "--task",
    "--tool-call-parser", "--trust-request-chat-template", "--uds",
)  # fmt: skip
"""vLLM's names of flags that this server has, too."""


def _context(value: str) -> dict[ConfigField, object]:
    """Parses a context length; 0 = the model's."""
    return {ENGINE.max_model_len: integer(0)(value) or None}


def _cache_type(value: str) -> dict[ConfigField, object]:
    kinds = {"q8_0": "u8", "q4_0": "u4", "f16": "f16", "bf16": "bf16", "f32": "f32"}
    return {ENGINE.plugin_config: {"KV_CACHE_PRECISION": kinds[choice(*kinds)(value)]}}


def on_off(value: str) -> str:
    """Parses a switch of llama.cpp, which may have no value: on."""
    return choice("on", "off", "auto")(value)


def _reasoning(value: str) -> dict[ConfigField, object]:
    variables = {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}}
    return {CHAT.default_chat_template_kwargs: variables.get(choice(*variables, "auto")(value), {})}


def _reasoning_format(value: str) -> dict[ConfigField, object]:
    return {CHAT.reasoning_parser: "none"} if _FORMAT(value) == "none" else {}


_FORMAT: Final = choice("none", "auto", "deepseek")


def _float(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _recommended(member: str, off: float | None = None) -> Callable[[str], object]:
    """Returns a parser for a default sampling parameter of requests. `off` is the value that
    disables the parameter."""

    def read(value: str) -> dict[ConfigField, object]:
        parsed = _float(value)
        if not math.isfinite(parsed):
            raise argparse.ArgumentTypeError(f"must be a number, not {value!r}")
        given = int(parsed) if parsed.is_integer() else parsed
        return {} if given == off else {FILES.override_generation_config: {member: given}}

    return read


def _only(off: float) -> Callable[[str], object]:
    """Returns a parser that accepts only the value that disables a sampler."""

    def read(value: str) -> float:
        parsed = _float(value)
        if parsed != off:
            raise argparse.ArgumentTypeError(
                f"must be {off:g}, not {value!r}: this sampler is not supported"
            )
        return parsed

    return read


def _switch_for(field: ConfigField, value: object) -> Callable[[bool], dict[ConfigField, object]]:
    """Returns a function that returns the settings of a switch for a field."""
    return lambda is_on: {field: value} if is_on else {}


LLAMA_FLAGS: Final = (
    ForeignFlag("--ctx-size", _context, None, settings=dict),
    ForeignFlag("--cache-type-k", _cache_type, None, settings=dict),
    ForeignFlag("--cache-type-v", _cache_type, None, settings=dict),
    ForeignFlag("--reasoning", _reasoning, None, settings=dict),
    ForeignFlag("--reasoning-format", _reasoning_format, None, settings=dict),
    ForeignFlag("--embeddings", None, None, settings=_switch_for(ENCODER.task, "embeddings")),
    ForeignFlag("--reranking", None, None, settings=_switch_for(ENCODER.task, "rerank")),
    ForeignFlag("--log-jsonl", None, None, settings=_switch_for(SERVICE.log_format, "json")),
    ForeignFlag("--verbose", None, None, settings=_switch_for(SERVICE.log_level, "debug")),
    *(
        ForeignFlag(f"--{name}", _recommended(member, off), None, settings=dict)
        for name, member, off in (
            ("n-predict", "max_new_tokens", -1),
            ("temp", "temperature", None),
            ("top-k", "top_k", None),
            ("top-p", "top_p", None),
            ("min-p", "min_p", None),
            ("repeat-penalty", "repetition_penalty", None),
            ("presence-penalty", "presence_penalty", None),
            ("frequency-penalty", "frequency_penalty", None),
        )
    ),
    *(
        ForeignFlag(f"--{name}", _only(off), None, (off,))
        for name, off in (
            ("mirostat", 0), ("xtc-probability", 0), ("typical", 1), ("dry-multiplier", 0),
            ("dynatemp-range", 0), ("top-nsigma", -1), ("adaptive-target", -1),
        )
    ),
    ForeignFlag("--flash-attn", on_off, "OpenVINO chooses its kernels", ("on", "auto")),
    ForeignFlag("--fit", on_off, "the KV cache fits into the memory", ("on", "auto")),
    ForeignFlag("--log-colors", on_off, LOG_FLAGS, ("auto",)),
    ForeignFlag("--jinja", None, _ALWAYS, (True,)),
    ForeignFlag("--cont-batching", None, _ALWAYS, (True,)),
    ForeignFlag("--metrics", None, _ALWAYS, (True,)),
    ForeignFlag("--kv-unified", None, "all requests share the KV cache", (True,)),
    ForeignFlag("--context-shift", None, "an answer ends where the context does", (False,)),
    ForeignFlag("--mmproj-auto", None, "images need an export of the model", (False,)),
    ForeignFlag("--models-autoload", None, _ALWAYS, (True,)),
    *_without_use(
        _DEVICE,
        "gpu-layers split-mode tensor-split main-gpu n-cpu-moe n-cpu-ffn override-tensor "
        "fit-target fit-ctx spec-draft-ngl spec-draft-device moe-cache-mib rpc",
        "cpu-moe kv-offload op-offload mmproj-offload no-host",
    ),
    *_without_use(
        "--threads sets the threads that compute",
        "threads-batch threads-http cpu-mask cpu-range cpu-strict prio poll cpu-mask-batch "
        "cpu-range-batch cpu-strict-batch prio-batch poll-batch numa",
    ),
    *_without_use(
        "the model's file is mapped and packed as its kernels need it",
        "load-mode lazy-mode",
        "mmap mlock direct-io repack check-tensors swa-full",
    ),
    *_without_use(
        "see --prefix-cache-dir and --cache-size",
        "slot-save-path cache-ram cache-reuse slot-prompt-similarity ctx-checkpoints "
        "checkpoint-min-step defrag-thold kv-unified-per-slot lookup-cache-static "
        "lookup-cache-dynamic",
        "cache-idle-slots",
    ),
    *_without_use(
        "drafts are made where they are faster: see --enable-prompt-lookup",
        "spec-type spec-draft-n-max spec-draft-n-min spec-draft-p-min spec-draft-type-k "
        "spec-draft-type-v ctx-size-draft",
    ),
    *_without_use(LOG_FLAGS, "verbosity", "log-disable log-prefix log-timestamps perf"),
    *_without_use("see --write-timeout", "timeout"),
    *_without_use("penalties count all tokens", "repeat-last-n"),
    *_without_use("penalties of this sampler are off",
                  "dry-base dry-allowed-length dry-penalty-last-n dry-sequence-breaker "
                  "xtc-threshold dynatemp-exp mirostat-lr mirostat-ent adaptive-decay"),
    *_without_use("the prompt is never shortened", "keep"),
    *_without_use("there is no such endpoint", "", "slots props"),
    *_without_use("the first request is as fast as the others", "", "warmup"),
    *_without_use("see --shrink-images-to", "image-min-tokens image-max-tokens"),
    *_without_use("the page has settings of its own", "webui-config webui-config-file tags"),
)  # fmt: skip

_SAMPLING: Final = "requests ask for it: the server has no such default"
_GGUF_ADAPTERS: Final = "adapters have PEFT's format: --lora-modules NAME=DIR"

_LLAMA_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("--grammar", "--grammar-file", "--json-schema", "--json-schema-file", "--logit-bias",
         "--reverse-prompt", "--samplers", "--sampler-seq", "--ignore-eos", "--special"),
        _SAMPLING,
    ),
    **dict.fromkeys(
        ("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"), _GGUF_ADAPTERS
    ),
    **dict.fromkeys(
        ("--mmproj", "--mmproj-url"),
        "images need a vision model in OpenVINO's format, exported by optimum-cli",
    ),
    **dict.fromkeys(
        ("--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--override-kv"),
        "the model's file says it",
    ),
    **dict.fromkeys(
        ("--models-dir", "--models-preset"), "name each model: --model NAME=FILE, or --config-path"
    ),
    **dict.fromkeys(
        ("--tools", "--agent", "--mcp-servers-config", "--mcp-servers-json"),
        "clients call tools themselves",
    ),
    **dict.fromkeys(
        ("--model-url", "--docker-repo"), "name a file, or ORG/NAME/FILE.gguf of a hub"
    ),
    "--offline": "set HF_HUB_OFFLINE=1 in the environment",
    "--path": "the server has a page of its own, and serves no other files",
}  # fmt: skip
REFUSED_FLAGS: Final[Mapping[str, str]] = {**VLLM_REFUSED, **_LLAMA_REFUSED}
"""Flags without a counterpart that would change answers or access, and the alternative for each."""

FOREIGN_FLAGS: Final = OVMS_FLAGS + VLLM_FLAGS + LLAMA_FLAGS

OTHER_NAMES: Final[Mapping[str, str]] = {
    "--tool-call-parser": "--tool-parser",
    "--disable-fastapi-docs": "--no-enable-docs",
    "--no-disable-fastapi-docs": "--enable-docs",
    # of llama.cpp
    "--alias": "--model-name",
    "--api-prefix": "--root-path",
    "--cache-prompt": "--enable-prefix-caching",
    "--no-cache-prompt": "--no-enable-prefix-caching",
    "--chat-template-file": "--chat-template",
    "--chat-template-kwargs": "--default-chat-template-kwargs",
    "--cors-credentials": "--allow-credentials",
    "--no-cors-credentials": "--no-allow-credentials",
    "--cors-headers": "--allowed-headers",
    "--cors-methods": "--allowed-methods",
    "--cors-origins": "--allowed-origins",
    "--draft": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-p-min": "--spec-draft-p-min",
    "--embedding": "--embeddings",
    "--hf-file": "--gguf-filename",
    "--hf-repo": "--source-model",
    "--log-verbose": "--verbose",
    "--log-verbosity": "--verbosity",
    "--media-path": "--allowed-local-media-path",
    "--model-draft": "--draft-model",
    "--models-max": "--max-loaded-models",
    "--n-gpu-layers": "--gpu-layers",
    "--no-mmproj": "--no-mmproj-auto",
    "--no-webui": "--no-ui",
    "--parallel": "--max-num-seqs",
    "--predict": "--n-predict",
    "--rerank": "--reranking",
    "--sleep-idle-seconds": "--idle-unload",
    "--sse-ping-interval": "--ping-interval",
    "--ssl-cert-file": "--ssl-certfile",
    "--ssl-key-file": "--ssl-keyfile",
    "--temperature": "--temp",
    "--top-n-sigma": "--top-nsigma",
    "--typical-p": "--typical",
    "--webui": "--ui",
}
"""Other servers' names for flags that mean the same here."""

SHORT_NAMES: Final[Mapping[str, str]] = {
    # of vLLM
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-O": "--compilation-config",
    # of llama.cpp
    "-a": "--alias",
    "-b": "--batch-size",
    "-c": "--ctx-size",
    "-cb": "--cont-batching",
    "-cmoe": "--cpu-moe",
    "-cram": "--cache-ram",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-dev": "--device",
    "-fa": "--flash-attn",
    "-fit": "--fit",
    "-hf": "--hf-repo",
    "-hff": "--hf-file",
    "-hfr": "--hf-repo",
    "-hft": "--hf-token",
    "-j": "--json-schema",
    "-kvu": "--kv-unified",
    "-lv": "--verbosity",
    "-m": "--model",
    "-md": "--draft-model",
    "-mg": "--main-gpu",
    "-mm": "--mmproj",
    "-mu": "--model-url",
    "-n": "--n-predict",
    "-ncmoe": "--n-cpu-moe",
    "-ngl": "--gpu-layers",
    "-ngld": "--spec-draft-ngl",
    "-nkvo": "--no-kv-offload",
    "-np": "--max-num-seqs",
    "-ot": "--override-tensor",
    "-rea": "--reasoning",
    "-s": "--seed",
    "-sm": "--split-mode",
    "-sps": "--slot-prompt-similarity",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-to": "--timeout",
    "-ts": "--tensor-split",
    "-ub": "--ubatch-size",
    "-v": "--verbose",
}
"""Short flags of other servers, and their long forms."""

OTHER_COMMANDS: Final[Mapping[str, str]] = {
    "run": "chat MODEL chats in the terminal, serve MODEL serves a model",
    "start": "serve MODEL serves a model",
    "complete": "chat MODEL chats in the terminal",
    "ps": "GET /api/ps and GET /v1/work of a running server list what is loaded and what runs",
    "show": "POST /api/show of a running server describes a model, doctor MODEL examines one",
    "stop": "end the server with Ctrl-C or SIGTERM; --idle-unload unloads idle models",
    "rm": "delete the model's directory below --model-repository-path",
    "cp": "--model NAME=MODEL gives a model another name",
    "create": "--chat-template and --override-generation-config do what a Modelfile does",
    "push": "models are only downloaded",
    "collect-env": "doctor examines the machine and the installation",
    "convert": "export models with optimum-cli; serve converts GGUF files itself",
    "install": "pull ORG/NAME downloads a model",
    "download": "pull ORG/NAME downloads a model",
    "update": "pull --overwrite-models ORG/NAME downloads a model again",
}
"""Commands of Ollama, vLLM and others, and the counterpart of each."""
