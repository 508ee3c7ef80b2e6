"""Reads OpenVINO Model Server's graph.pbtxt as settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.ovms.options import (
    GUIDANCE,
    ONE_IMAGE,
    OVMS_OPTIONS,
    Choice,
    Group,
    Integer,
    Kind,
    OvmsOption,
    Repeated,
)
from fastovms.parts.ovms.plugin_config import parse_plugin_config
from fastovms.parts.ovms.textproto import BareWord, Field, Message, SyntaxFault, parse
from fastovms.server_config import (
    ENCODER,
    ENGINE,
    FILES,
    IMAGES,
    SPEAKING,
    ConfigField,
    Settings,
)
from fastovms.setting import picture_size


@dataclass(frozen=True, slots=True)
class Calculator:
    """The MediaPipe calculator that runs a model in a graph.

    Attributes:
        messages: the names of the message that holds the calculator's options.
        options: the options, by their names in the graph.
        implied: the settings that the use of this calculator implies.
    """

    messages: tuple[str, ...]
    options: Mapping[str, OvmsOption]
    implied: Mapping[ConfigField, Any] = field(default_factory=dict)

    @property
    def group(self) -> Group:
        kinds: dict[str, Kind] = {name: option.kind for name, option in self.options.items()}
        return Group(kinds, ("models_path",))


def _messages(name: str) -> tuple[str, ...]:
    return f"mediapipe.{name}", f"mediapipe.{name}.ext"


_MODEL: Final = {
    "models_path": OvmsOption(str, FILES.path),
    "target_device": OvmsOption(str, ENGINE.device, neutral=("",)),
    "plugin_config": OvmsOption(str, ENGINE.plugin_config, neutral=("",)),
}
IMAGE_SIZES: Final[Mapping[str, ConfigField]] = {
    "max_resolution": IMAGES.max_resolution,
    "default_resolution": IMAGES.default_resolution,
    "resolution": IMAGES.resolution,
}
"""The image size options of graphs, which are texts, by name."""

_LENGTH: Final = OvmsOption(Integer(1), ENGINE.max_model_len)

CALCULATORS: Final[Mapping[str, Calculator]] = {
    "HttpLLMCalculator": Calculator(
        _messages("LLMCalculatorOptions"),
        {option.graph: option for option in OVMS_OPTIONS if option.graph},
    ),
    "EmbeddingsCalculatorOV": Calculator(
        _messages("EmbeddingsCalculatorOVOptions"),
        {
            **_MODEL,
            "normalize_embeddings": OvmsOption(bool, ENCODER.normalize),
            "pooling": OvmsOption(Choice(("CLS", "LAST", "MEAN")), ENCODER.pooling),
            "truncate": OvmsOption(bool, ENCODER.truncate),
            "max_length": _LENGTH,
        },
        {ENCODER.task: Task.EMBEDDINGS.value},
    ),
    "RerankCalculatorOV": Calculator(
        _messages("RerankCalculatorOVOptions"),
        {
            **_MODEL,
            "max_allowed_chunks": OvmsOption(Integer(1), ENCODER.max_allowed_chunks),
            "max_position_embeddings": _LENGTH,
            "max_length": _LENGTH,
        },
        {ENCODER.task: Task.RERANK.value},
    ),
    "S2tCalculator": Calculator(
        _messages("S2tCalculatorOptions"),
        {
            **_MODEL,
            "enable_word_timestamps": OvmsOption(
                bool, None, "the first request for times of words enables them", (True, False)
            ),
        },
        {ENCODER.task: Task.SPEECH.value},
    ),
    "ImageGenCalculator": Calculator(
        _messages("ImageGenCalculatorOptions"),
        {
            "models_path": OvmsOption(str, FILES.path),
            "device": OvmsOption(str, ENGINE.device, neutral=("",)),
            "plugin_config": OvmsOption(str, ENGINE.plugin_config, neutral=("",)),
            **{name: OvmsOption(str, field) for name, field in IMAGE_SIZES.items()},
            "max_num_images_per_prompt": OvmsOption(Integer(1), IMAGES.max_num_images_per_prompt),
            "default_num_inference_steps": OvmsOption(
                Integer(1), IMAGES.default_num_inference_steps
            ),
            "max_num_inference_steps": OvmsOption(Integer(1), IMAGES.max_num_inference_steps),
            "num_images_per_prompt": OvmsOption(Integer(1), None, ONE_IMAGE, (1,)),
            "guidance_scale": OvmsOption(float, None, GUIDANCE),
        },
        {ENCODER.task: Task.IMAGES.value},
    ),
    "T2sCalculator": Calculator(
        _messages("T2sCalculatorOptions"),
        {
            **_MODEL,
            "voices": OvmsOption(
                Repeated(Group({"name": str, "path": str}, ("name", "path"))), SPEAKING.voices
            ),
            "speed_min": OvmsOption(float, SPEAKING.min_speed),
            "speed_max": OvmsOption(float, SPEAKING.max_speed),
        },
        {ENCODER.task: Task.SPEECH_OUT.value},
    ),
}


class GraphText(NamedTuple):
    """A graph in protobuf's text format.

    Attributes:
        calculator: the name of the calculator that runs the model.
    """

    calculator: str
    text: str

    def filled(self, options: str) -> str:
        """Returns the graph's text with the given options, one per line, in its node."""
        return self.text % options.replace("\n", "\n      ")


_GENERATION: Final = """\
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

_ENCODING: Final = """\
input_stream: "%(tag)sREQUEST_PAYLOAD:input"
output_stream: "%(tag)sRESPONSE_PAYLOAD:output"
node: {
  name: "%(node)s"
  calculator: "%(calculator)s"
  input_side_packet: "%(resources)s"
  input_stream: "%(tag)sREQUEST_PAYLOAD:input"
  output_stream: "%(tag)sRESPONSE_PAYLOAD:output"
  node_options: {
    [type.googleapis.com / mediapipe.%(calculator)sOptions]: {
      %%s
    }
  }
}
"""


_IMAGES: Final = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node: {
  name: "ImageGenExecutor"
  calculator: "ImageGenCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "IMAGE_GEN_NODE_RESOURCES:pipes"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {
    [type.googleapis.com / mediapipe.ImageGenCalculatorOptions]: {
      %s
    }
  }
}
"""


def _encoding(node: str, calculator: str, resources: str, tag: str = "") -> GraphText:
    names = {"node": node, "calculator": calculator, "resources": resources, "tag": tag}
    return GraphText(calculator, _ENCODING % names)


GRAPHS: Final[Mapping[Task, GraphText]] = {
    Task.TEXT_GENERATION: GraphText("HttpLLMCalculator", _GENERATION),
    Task.EMBEDDINGS: _encoding(
        "EmbeddingsExecutor",
        "EmbeddingsCalculatorOV",
        "EMBEDDINGS_NODE_RESOURCES:embeddings_servable",
    ),
    Task.RERANK: _encoding(
        "RerankExecutor", "RerankCalculatorOV", "RERANK_NODE_RESOURCES:rerank_servable"
    ),
    Task.IMAGES: GraphText("ImageGenCalculator", _IMAGES),
    Task.SPEECH: _encoding(
        "S2tExecutor", "S2tCalculator", "STT_NODE_RESOURCES:s2t_servable", "HTTP_"
    ),
    Task.SPEECH_OUT: _encoding(
        "T2sExecutor", "T2sCalculator", "TTS_NODE_RESOURCES:t2s_servable", "HTTP_"
    ),
}


MAX_INTEGER: Final = 2**64 - 1
"""The maximum of integer options without their own bound."""

OPTIONS: Final = CALCULATORS["HttpLLMCalculator"].options
"""The options in OVMS's LLMCalculatorOptions."""

_NAMES: Final = ", ".join(CALCULATORS)


@dataclass(frozen=True, slots=True)
class Node:
    """A model's node in a graph.

    Attributes:
        settings: the settings of the graph.
        unused: a line for each option without effect on this server.
    """

    settings: Settings
    unused: list[str]


def read_graph(path: Path) -> Node:
    """Reads the single node of a graph, with paths resolved relative to the working directory.
    Raises ConfigurationError if the file cannot be read, is not a graph of one model, or has an
    invalid option."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    try:
        calculator, options = _options(parse(text))
        given, unused = _read_node(calculator, options)
    except SyntaxFault as fault:
        raise ConfigurationError(f"{path}, line {fault.line}: {fault}") from None
    _resolve_paths(given, path)
    try:
        if ENGINE.plugin_config in given:
            given[ENGINE.plugin_config] = parse_plugin_config(given[ENGINE.plugin_config])
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return Node(Settings(given), unused)


def _options(graph: Message) -> tuple[Calculator, Field]:
    """Returns the calculator of the single node, and the field that holds its options. Raises
    SyntaxFault if the graph has another form."""
    nodes = [field for field in graph.all("node") if isinstance(field.value, Message)]
    if len(nodes) != 1:
        raise SyntaxFault(1, f"a graph must have one node, with one of {_NAMES}, not {len(nodes)}")
    [node] = nodes
    assert isinstance(node.value, Message)
    name = _only_text(node, "calculator")
    calculator = CALCULATORS.get(name)
    if calculator is None:
        raise SyntaxFault(node.line, f"the calculator must be one of {_NAMES}, not {name}")
    if not _only_text(node, "name"):
        raise SyntaxFault(node.line, "the node needs a name")
    found = [
        options
        for holder in (*node.value.all("node_options"), *node.value.all("options"))
        if isinstance(holder.value, Message)
        for options in holder.value.fields
        if options.name.strip("[]").rpartition("/")[2] in calculator.messages
    ]
    if len(found) != 1:
        raise SyntaxFault(
            node.line, f"the node needs one {calculator.messages[0]}, not {len(found)}"
        )
    return calculator, found[0]


def _only_text(node: Field, name: str) -> str:
    assert isinstance(node.value, Message)
    values = [found.value for found in node.value.all(name)]
    if len(values) > 1 or not all(isinstance(value, str) for value in values):
        raise SyntaxFault(node.line, f"{name} must be one string")
    return str(values[0]) if values else ""


def _read_node(calculator: Calculator, options: Field) -> tuple[dict[ConfigField, Any], list[str]]:
    """Returns the settings of a node's options, and a line for each option without effect."""
    given = _read_group(options, calculator.group, "")
    used: dict[ConfigField, Any] = dict(calculator.implied)
    unused: list[str] = []
    for name, value in given.items():
        option = calculator.options[name]
        if value in option.neutral:
            continue
        if option.field is None:
            unused.append(f"{name} is not used: {option.unused}")
        elif name in IMAGE_SIZES:
            used[option.field] = _size(options, name, str(value))
        elif isinstance(value, list):
            used[option.field] = {voice["name"]: voice["path"] for voice in value}
        else:
            used[option.field] = str(value).lower() if option.field == ENCODER.pooling else value
    drafting = [name for name in given if name.startswith("draft_")]
    if drafting and "draft_models_path" not in given:
        raise SyntaxFault(options.line, f"{drafting[0]} needs draft_models_path")
    speeds = [used.get(bound, bound.default) for bound in (SPEAKING.min_speed, SPEAKING.max_speed)]
    if not 0 < speeds[0] <= speeds[1]:
        raise SyntaxFault(
            options.line,
            f"speed_min must be above 0 and at most speed_max, not {speeds[0]} of {speeds[1]}",
        )
    return used, unused


def _size(options: Field, name: str, text: str) -> tuple[int, int]:
    try:
        return picture_size(text)
    except argparse.ArgumentTypeError as error:
        raise SyntaxFault(options.line, f"{name} {error}") from None


def _read_group(group: Field, kind: Group, prefix: str) -> dict[str, object]:
    if not isinstance(group.value, Message):
        raise SyntaxFault(group.line, f"{group.name} must be a message in braces")
    values: dict[str, Any] = {}
    for found in group.value.fields:
        name = f"{prefix}{found.name}"
        inner = kind.options.get(found.name)
        if inner is None:
            raise SyntaxFault(found.line, f"{name} is not an option")
        if isinstance(inner, Repeated):
            values.setdefault(found.name, []).append(_read_value(found, inner.group, name))
            continue
        if found.name in values:
            raise SyntaxFault(found.line, f"{name} is given twice")
        values[found.name] = _read_value(found, inner, name)
    for required in kind.required:
        if required not in values:
            raise SyntaxFault(group.line, f"{prefix}{required} is required")
    return values


def _read_value(found: Field, kind: Kind, name: str) -> object:
    value = found.value
    match kind:
        case Group():
            return _read_group(found, kind, f"{name}.")
        case Integer(low, high):
            high = MAX_INTEGER if high is None else high
            if type(value) is int and low <= value <= high:
                return value
            allowed = f"an integer from {low} to {high}"
        case Choice(names, _):
            if isinstance(value, BareWord) and value in names:
                return str(value)
            allowed = f"one of {', '.join(names)}"
        case _ if kind is bool:
            truth = (
                _BOOLEANS.get(value) if isinstance(value, BareWord) or type(value) is int else None
            )
            if truth is not None:
                return truth
            allowed = "true or false"
        case _ if kind is float:
            if type(value) in (int, float):
                return value
            allowed = "a number"
        case _:
            if isinstance(value, str) and not isinstance(value, BareWord):
                return value
            allowed = "a string"
    raise SyntaxFault(found.line, f"{name} must be {allowed}, not {_shown(value)}")


_BOOLEANS: Final[Mapping[object, bool]] = {
    "true": True, "True": True, "t": True, 1: True,
    "false": False, "False": False, "f": False, 0: False,
}  # fmt: skip
"""The words that protobuf's text format accepts for a boolean."""


def _shown(value: object) -> str:
    if isinstance(value, Message):
        return "a message"
    return str(value) if not isinstance(value, str) or isinstance(value, BareWord) else repr(value)


def _resolve_paths(given: dict[ConfigField, Any], graph: Path) -> None:
    """Resolves paths in place: `generation_config_path` relative to the model, others relative to
    the graph."""
    for key, name in _PATHS.items():
        if key not in given:
            continue
        of_file = key == FILES.generation_config
        path = (given[FILES.path] if of_file else graph.parent) / given[key]
        is_model = path.is_dir() or (path.is_file() and path.suffix == ".gguf")
        if not given[key] or not (path.is_file() if of_file else is_model):
            kind = "file" if of_file else "directory or GGUF file of a model"
            raise ConfigurationError(f"{graph}: {name}: there is no {kind} at {path}")
        given[key] = path
    voices = {name: graph.parent / path for name, path in given.get(SPEAKING.voices, {}).items()}
    for name, path in voices.items():
        if not path.is_file():
            raise ConfigurationError(f"{graph}: voices: there is no file of {name} at {path}")
    if voices:
        given[SPEAKING.voices] = voices


_PATHS: Final = {
    FILES.path: "models_path",
    ENGINE.draft_model: "draft_models_path",
    FILES.generation_config: "generation_config_path",
}
