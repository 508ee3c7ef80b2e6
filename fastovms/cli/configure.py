"""OpenVINO Model Server's `--configure`: writes the graph of a model that is in a directory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastovms.cli.flags import GROUPS
from fastovms.cli.settings import model_settings, settings_of
from fastovms.cli.unused_flags import given_flags
from fastovms.errors import ConfigurationError
from fastovms.ovms.files import path_from, write_file
from fastovms.ovms.graph import GRAPH_FILE, MODEL_FILES, OPTIONS, Choice, Integer
from fastovms.ovms.plugin_config import read_plugin_config
from fastovms.ovms.textproto import quote

_GRAPH: Final = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node: {
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info: { tag_index: "LOOPBACK:0", back_edge: true }
  node_options: {
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
      %s
    }
  }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } }
    }
  }
}
"""

_OPTIONS: Final[Mapping[str, str]] = {
    "engine.device": "device",
    "engine.max_num_seqs": "max_num_seqs",
    "engine.max_num_batched_tokens": "max_num_batched_tokens",
    "engine.cache_size": "cache_size",
    "engine.enable_prefix_caching": "enable_prefix_caching",
    "engine.draft_model": "draft_models_path",
    "chat.tool_parser": "tool_parser",
    "chat.reasoning_parser": "reasoning_parser",
    "--pipeline-type": "pipeline_type",
    "--dynamic-split-fuse": "dynamic_split_fuse",
    "--enable-tool-guided-generation": "enable_tool_guided_generation",
    "--cache-interval-multiplier": "cache_interval_multiplier",
}
"""The node's options by the field that a flag sets, or by the flag where it has no use here."""

_PROPERTIES: Final[Mapping[str, str]] = {
    "plugin.KV_CACHE_PRECISION": "KV_CACHE_PRECISION",
    "engine.cache_dir": "CACHE_DIR",
    "engine.enable_prompt_lookup": "prompt_lookup",
    "--max-prompt-len": "MAX_PROMPT_LEN",
    "--model-distribution-policy": "MODEL_DISTRIBUTION_POLICY",
}
"""The same for members of the option plugin_config."""

_PLUGIN_CONFIG: Final = "engine.plugin_config"
_DEFAULTS: Final[Mapping[str, object]] = {"device": "CPU", "enable_prefix_caching": True}
"""Of flags, where OVMS has others for graphs."""

HELD_FLAGS: Final = frozenset((*_OPTIONS, *_PROPERTIES))
"""Flags that have a use in a graph, if they have no other."""


def write_graph(arguments: argparse.Namespace) -> Path:
    """Writes what the flags say of the model in --model-path, over a graph that is there, and
    returns where.

    Raises:
        ConfigurationError: there is no model, or a flag is about the model and cannot stand in a
            graph.
    """
    folder: Path | None = arguments.model_path
    if folder is None:
        raise ConfigurationError("--configure needs --model-path")
    given = settings_of(arguments)
    model = _model(folder, arguments.gguf_filename)
    graph = folder / GRAPH_FILE
    options = _options({**model_settings(given), **given_flags(arguments)}, folder)
    lines = [f"{name}: {_shown(name, value)}" for name, value in options.items()]
    write_file(graph, _GRAPH % "\n      ".join([f"models_path: {quote(model)}", *lines]))
    return graph


def _model(folder: Path, gguf: str | None) -> str:
    """Where it is, from the directory."""
    if not folder.is_dir():
        raise ConfigurationError(f"--model-path must be the directory of a model, not {folder}")
    names = MODEL_FILES if gguf is None else (gguf,)
    if not any((folder / name).is_file() for name in names):
        raise ConfigurationError(f"--model-path: {folder} has no {' or '.join(names)}")
    return f"./{gguf or ''}"


def _options(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    flags = {flag.field: flag.name for flags in GROUPS.values() for flag in flags}
    for name in given:
        if name in flags and name not in HELD_FLAGS and name != _PLUGIN_CONFIG:
            raise ConfigurationError(f"--configure: a graph has no option for {flags[name]}")
    options = {**_DEFAULTS, **{_OPTIONS[name]: given[name] for name in _OPTIONS if name in given}}
    for name in ("tool_parser", "reasoning_parser"):
        if options.get(name) == "auto":  # in a graph that is said by saying nothing
            del options[name]
    if (draft := options.get("draft_models_path")) is not None:
        options["draft_models_path"] = _draft(draft, folder)
    properties = {_PROPERTIES[name]: given[name] for name in _PROPERTIES if name in given}
    properties = {**given.get(_PLUGIN_CONFIG, {}), **properties}
    read_plugin_config(properties)  # refuses what cannot be one
    return {**options, **({"plugin_config": json.dumps(properties)} if properties else {})}


def _draft(draft: Path, folder: Path) -> str:
    """Where it is, from the directory, in which OVMS keeps a pulled one as ORG-NAME."""
    name = path_from(folder, draft) if draft.exists() else str(draft).replace("/", "-")
    if not (folder / name).exists():
        raise ConfigurationError(f"--draft-model: there is no {draft} and no {folder / name}")
    return name


def _shown(option: str, value: Any) -> str:
    """In protobuf's text format."""
    kind = OPTIONS[option].kind
    if isinstance(kind, Integer):
        if value != int(value) or not kind.low <= value <= kind.high:
            allowed = f"an integer from {kind.low} to {kind.high}"
            raise ConfigurationError(
                f"--configure: {option} of a graph must be {allowed}, not {value}"
            )
        return str(int(value))
    if isinstance(kind, Choice):
        return str(value)
    return str(value).lower() if kind is bool else quote(value)
