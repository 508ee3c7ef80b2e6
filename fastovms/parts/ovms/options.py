"""The options of OpenVINO Model Server: for each option its names in flags, files and variables,
and the setting of this server that it sets.

Command-line options that have the name of this server's flag need no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fastovms.server_config import (
    CHAT,
    ENCODER,
    ENGINE,
    FILES,
    HTTP,
    LIMITS,
    MEDIA,
    REPOSITORY,
    RESIDENCY,
    SERVICE,
    ConfigField,
)


class Integer(NamedTuple):
    """An integer option within bounds.

    Args:
        high: None = the maximum of the file's format.
    """

    low: int = 0
    high: int | None = None


class Choice(NamedTuple):
    """An option with one of several names as value. `ignores_case` is whether case is ignored on
    the command line."""

    names: tuple[str, ...]
    ignores_case: bool = False


class Group(NamedTuple):
    """A message in a graph that contains options."""

    options: Mapping[str, Kind]
    required: tuple[str, ...] = ()


class Repeated(NamedTuple):
    """A message that may occur any number of times in a graph."""

    group: Group


Kind = type[str] | type[bool] | type[float] | type[Path] | Integer | Choice | Group | Repeated
"""The type of an option's value."""


class OvmsOption(NamedTuple):
    """An option with all its names; "" = the option does not exist there.

    Attributes:
        field: the setting that the option sets; None = it is ignored.
        unused: the reason why the option is ignored.
        neutral: values that need no warning, because the server behaves accordingly anyway.
        flag: its command-line flag, with dashes. If this server has a flag for the same setting,
            the value is parsed like that flag's.
        graph: its name in a graph's LLMCalculatorOptions.
        device_property: its name in plugin_config, among the device's properties.
        pipeline_property: its name in plugin_config, among the pipeline's properties.
        member: its name in an entry of a model list.
        variable: its environment variable.
    """

    kind: Kind
    field: ConfigField | None = None
    unused: str | None = None
    neutral: tuple[object, ...] = ()
    flag: str = ""
    graph: str = ""
    device_property: str = ""
    pipeline_property: str = ""
    member: str = ""
    variable: str = ""


ALWAYS_IN_PARTS: Final = "long prompts are always computed in parts"
ONE_DEVICE: Final = "a model runs on one device"
LOG_FLAGS: Final = "--log-level and --access-log say what is logged"
_APPROXIMATE: Final = "attention is always exact"
_EXPORT: Final = "models are downloaded as they are"
_GRPC: Final = "there is no gRPC here"
_NPU: Final = "it is for NPUs"
ONE_IMAGE: Final = "the images of a request are made one after another"
GUIDANCE: Final = "a model with --resolution is compiled for its own guidance_scale"
_SPEECH: Final = "speech models are downloaded as they are"
_SAME_AS_MAIN: Final = "the draft model runs as the model that it drafts for"
STEP_TOKENS: Final = "--max-num-batched-tokens bounds the tokens of a step"
_TENSORS: Final = "it is about models of tensors"

_UINT16: Final = 2**16 - 1
_UINT32: Final = 2**32 - 1

_KV_CRUSH: Final = Group(
    {
        "budget": Integer(),
        "anchor_point_mode": Choice(("RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING")),
        "rng_seed": Integer(),
    }
)
_CACHE_EVICTION: Final = Group(
    {
        "aggregation_mode": Choice(("SUM", "NORM_SUM")),
        "start_size": Integer(),
        "recent_size": Integer(),
        "max_cache_size": Integer(),
        "apply_rotation": bool,
        "snapkv_window_size": Integer(),
        "kv_crush_config": _KV_CRUSH,
    },
    required=("start_size", "recent_size", "max_cache_size"),
)
_SPARSE_ATTENTION: Final = Group(
    {
        "mode": Choice(("TRISHAPE", "XATTENTION")),
        "num_last_dense_tokens_in_prefill": Integer(),
        "num_retained_start_tokens_in_cache": Integer(),
        "num_retained_recent_tokens_in_cache": Integer(),
        "xattention_threshold": float,
        "xattention_block_size": Integer(),
        "xattention_stride": Integer(),
    }
)
_PIPELINES: Final = Choice(("AUTO", "LM", "VLM", "LM_CB", "VLM_CB", "OMNI"))

_USED: Final = (
    OvmsOption(Integer(0, _UINT16), HTTP.port, flag="--rest-port"),
    OvmsOption(str, HTTP.host, flag="--rest-bind-address"),
    OvmsOption(str, SERVICE.log_file, flag="--log-path"),
    OvmsOption(bool, SERVICE.ovms_metrics, flag="--metrics-enable"),
    OvmsOption(Path, REPOSITORY.path, flag="--model-repository-path",
               variable="OVMS_MODEL_REPOSITORY_PATH"),
    OvmsOption(bool, MEDIA.allow_media_redirects, variable="OVMS_MEDIA_URL_ALLOW_REDIRECTS"),
    OvmsOption(str, FILES.path, graph="models_path"),
    OvmsOption(str, FILES.generation_config, graph="generation_config_path"),
    OvmsOption(str, ENGINE.device, flag="--target-device", graph="device", member="target_device"),
    OvmsOption(str, ENGINE.plugin_config, flag="--plugin-config", graph="plugin_config",
               member="plugin_config"),
    OvmsOption(Integer(1), ENGINE.max_num_seqs, flag="--max-num-seqs", graph="max_num_seqs"),
    OvmsOption(Integer(1), ENGINE.max_num_batched_tokens, flag="--max-num-batched-tokens",
               graph="max_num_batched_tokens"),
    OvmsOption(Integer(), ENGINE.cache_size, flag="--cache-size", graph="cache_size"),
    OvmsOption(bool, ENGINE.enable_prefix_caching, flag="--enable-prefix-caching",
               graph="enable_prefix_caching"),
    OvmsOption(str, ENGINE.draft_model, flag="--draft-source-model", graph="draft_models_path"),
    OvmsOption(str, ENGINE.draft_model, flag="--draft-model-path"),
    OvmsOption(Integer(1), ENGINE.max_model_len, flag="--max-length"),
    OvmsOption(Integer(), RESIDENCY.idle_unload, flag="--idle-unload-timeout-seconds"),
    OvmsOption(str, ENGINE.cache_dir, flag="--cache-dir", device_property="CACHE_DIR"),
    OvmsOption(bool, ENGINE.enable_prompt_lookup, pipeline_property="prompt_lookup"),
    OvmsOption(str, CHAT.tool_parser, neutral=("",), flag="--tool-parser", graph="tool_parser"),
    OvmsOption(str, CHAT.reasoning_parser, neutral=("",), flag="--reasoning-parser",
               graph="reasoning_parser"),
    OvmsOption(str, ENCODER.task, flag="--task"),
    OvmsOption(str, ENCODER.pooling, flag="--pooling"),
    OvmsOption(bool, ENCODER.normalize, flag="--normalize"),
    OvmsOption(bool, ENCODER.truncate, flag="--truncate"),
    OvmsOption(Integer(1), ENCODER.max_allowed_chunks, flag="--max-allowed-chunks"),
    OvmsOption(Integer(1), None, "--plugin-config has NUM_STREAMS", (1,), flag="--num-streams"),
    OvmsOption(Integer(1, _UINT32), LIMITS.best_of_limit, graph="best_of_limit"),
    OvmsOption(Integer(1, _UINT32), LIMITS.max_tokens_limit, graph="max_tokens_limit"),
)  # fmt: skip

_OF_GENERATION: Final = (
    OvmsOption(_PIPELINES, None,
               "the model's files say what it is, and batching is always continuous",
               ("AUTO", "LM_CB"), flag="--pipeline-type", graph="pipeline_type"),
    OvmsOption(bool, None, ALWAYS_IN_PARTS, (True,), flag="--dynamic-split-fuse",
               graph="dynamic_split_fuse"),
    OvmsOption(bool, None, "a request asks for guided calls with tool_choice", (False,),
               flag="--enable-tool-guided-generation", graph="enable_tool_guided_generation"),
    OvmsOption(Integer(1), None, _NPU, flag="--max-prompt-len",
               pipeline_property="MAX_PROMPT_LEN"),
    OvmsOption(Integer(1), None, _NPU, pipeline_property="MIN_RESPONSE_LEN"),
    OvmsOption(str, None, "attention is always paged", pipeline_property="ATTENTION_BACKEND"),
    OvmsOption(Integer(), None, "it is for linear attention", flag="--cache-interval-multiplier",
               graph="cache_interval_multiplier"),
    OvmsOption(Choice(("TENSOR_PARALLEL", "PIPELINE_PARALLEL")), None, ONE_DEVICE,
               flag="--model-distribution-policy", device_property="MODEL_DISTRIBUTION_POLICY"),
    OvmsOption(Choice(("MINJA", "JINJA")), None, "templates are rendered by Jinja", ("JINJA",),
               graph="chat_template_mode"),
    OvmsOption(_CACHE_EVICTION, None, _APPROXIMATE, graph="cache_eviction_config"),
    OvmsOption(_SPARSE_ATTENTION, None, _APPROXIMATE, graph="sparse_attention_config"),
    OvmsOption(str, None, _SAME_AS_MAIN, graph="draft_device"),
    OvmsOption(Integer(), None, _SAME_AS_MAIN, graph="draft_max_num_batched_tokens"),
    OvmsOption(Integer(), None, _SAME_AS_MAIN, graph="draft_cache_size"),
    OvmsOption(Integer(), None, _SAME_AS_MAIN, graph="draft_block_size"),
    OvmsOption(Integer(), None, _SAME_AS_MAIN, graph="draft_max_num_seqs"),
    OvmsOption(bool, None, _SAME_AS_MAIN, graph="draft_dynamic_split_fuse"),
    OvmsOption(bool, None, "the files say what drafts", (False, True), graph="draft_eagle3_mode"),
)  # fmt: skip
"""Options of language models that are ignored."""

_OF_THE_SERVER: Final = (
    OvmsOption(Integer(0, _UINT16), None, _GRPC, (0,), flag="--grpc-port"),
    OvmsOption(str, None, _GRPC, flag="--grpc-bind-address"),
    OvmsOption(Integer(1), None, _GRPC, flag="--grpc-workers"),
    OvmsOption(Integer(1), None, _GRPC, flag="--grpc-max-threads"),
    OvmsOption(Integer(1), None, _GRPC, flag="--grpc-memory-quota"),
    OvmsOption(str, None, _GRPC, flag="--grpc-channel-arguments"),
    OvmsOption(Integer(1), None, "one event loop serves every connection", flag="--rest-workers"),
    OvmsOption(str, None, "every metric is exported", flag="--metrics-list"),
    OvmsOption(bool, None, "answers hold what the request asks for", (False,),
               flag="--verbose-response"),
    OvmsOption(str, None, _EXPORT, flag="--weight-format"),
    OvmsOption(str, None, _EXPORT, flag="--extra-quantization-params"),
    OvmsOption(str, None, LOG_FLAGS, flag="--trace-path"),
    OvmsOption(str, None, "--add-to-config writes it into a list", flag="--group-name"),
    OvmsOption(Choice(("speecht5", "kokoro")), None, _SPEECH, flag="--model-type"),
    OvmsOption(str, None, _SPEECH, flag="--vocoder"),
    OvmsOption(str, None, "there are no adapters of image models here", flag="--source-loras"),
    OvmsOption(Integer(1), None, ONE_IMAGE, (1,), flag="--num-images-per-prompt"),
    OvmsOption(str, None, GUIDANCE, flag="--guidance-scale"),
)  # fmt: skip

_OF_TENSORS: Final = (
    OvmsOption(str, None, "there are no custom layers in language models", flag="--cpu-extension"),
    OvmsOption(str, None, STEP_TOKENS, flag="--batch-size"),
    OvmsOption(str, None, _TENSORS, member="batch_size"),
    OvmsOption(str, None, _TENSORS, flag="--shape", member="shape"),
    OvmsOption(str, None, _TENSORS, flag="--layout", member="layout"),
    OvmsOption(Integer(), None, _TENSORS, (0,), flag="--nireq", member="nireq"),
    OvmsOption(str, None, _TENSORS, flag="--model-version-policy", member="model_version_policy"),
    OvmsOption(bool, None, _TENSORS, (False,), flag="--stateful", member="stateful"),
    OvmsOption(bool, None, _TENSORS, (False,), flag="--idle-sequence-cleanup",
               member="idle_sequence_cleanup"),
    OvmsOption(Integer(), None, _TENSORS, flag="--max-sequence-number",
               member="max_sequence_number"),
    OvmsOption(bool, None, _TENSORS, (False,), flag="--low-latency-transformation",
               member="low_latency_transformation"),
    OvmsOption(str, None, _TENSORS, member="allow_cache"),
    OvmsOption(str, None, _TENSORS, member="metadata"),
    OvmsOption(str, None, _TENSORS, member="precision"),
    OvmsOption(str, None, _TENSORS, flag="--mean", member="mean"),
    OvmsOption(str, None, _TENSORS, flag="--scale", member="scale"),
    OvmsOption(str, None, _TENSORS, flag="--color-format", member="color_format"),
    OvmsOption(bool, None, _TENSORS, (False,), flag="--disable-input-count-validation"),
    OvmsOption(Integer(), None, _TENSORS, flag="--sequence-cleaner-poll-wait-minutes"),
    OvmsOption(Integer(), None, _TENSORS, flag="--custom-node-resources-cleaner-interval-seconds"),
)  # fmt: skip

OVMS_OPTIONS: Final = (*_USED, *_OF_THE_SERVER, *_OF_GENERATION, *_OF_TENSORS)
