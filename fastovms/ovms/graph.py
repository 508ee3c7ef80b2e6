"""The node options of an OpenVINO Model Server graph (graph.pbtxt), as configuration.

The table of options follows OVMS's LLMCalculatorOptions. What MediaPipe says around them about
streams and their handlers is read over: there is one way to run a language model here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.ovms.textproto import Field, Message, SyntaxFault, Word, parse

GRAPH_FILE: Final = "graph.pbtxt"
MODEL_FILES: Final = ("openvino_model.xml", "openvino_language_model.xml")
"""One of them is in the directory of a model."""

_CALCULATOR: Final = "HttpLLMCalculator"
_OPTIONS: Final = ("mediapipe.LLMCalculatorOptions", "mediapipe.LLMCalculatorOptions.ext")
_UINT32: Final = 2**32 - 1
_UINT64: Final = 2**64 - 1


class Integer(NamedTuple):
    low: int = 0
    high: int = _UINT64


class Choice(NamedTuple):
    names: tuple[str, ...]


class Group(NamedTuple):
    """A message with options of its own."""

    options: Mapping[str, Option]
    required: tuple[str, ...] = ()


Kind = type[str] | type[bool] | type[float] | Integer | Choice | Group


class Option(NamedTuple):
    """One option.

    Attributes:
        target: the "section.field" of the configuration that it sets, or None.
        unused: why it has no use here.
        neutral: values that ask for nothing beyond what is done anyway.
    """

    kind: Kind
    target: str | None = None
    unused: str = ""
    neutral: tuple[object, ...] = ()


_APPROXIMATE: Final = "attention is always exact"
_SAME_AS_MAIN: Final = "the draft model runs as the model that it drafts for"

_KV_CRUSH: Final = Group(
    {
        "budget": Option(Integer()),
        "anchor_point_mode": Option(Choice(("RANDOM", "ZEROS", "ONES", "MEAN", "ALTERNATING"))),
        "rng_seed": Option(Integer()),
    }
)
_CACHE_EVICTION: Final = Group(
    {
        "aggregation_mode": Option(Choice(("SUM", "NORM_SUM"))),
        "start_size": Option(Integer()),
        "recent_size": Option(Integer()),
        "max_cache_size": Option(Integer()),
        "apply_rotation": Option(bool),
        "snapkv_window_size": Option(Integer()),
        "kv_crush_config": Option(_KV_CRUSH),
    },
    required=("start_size", "recent_size", "max_cache_size"),
)
_SPARSE_ATTENTION: Final = Group(
    {
        "mode": Option(Choice(("TRISHAPE", "XATTENTION"))),
        "num_last_dense_tokens_in_prefill": Option(Integer()),
        "num_retained_start_tokens_in_cache": Option(Integer()),
        "num_retained_recent_tokens_in_cache": Option(Integer()),
        "xattention_threshold": Option(float),
        "xattention_block_size": Option(Integer()),
        "xattention_stride": Option(Integer()),
    }
)
PIPELINE_TYPES: Final = ("AUTO", "LM", "VLM", "LM_CB", "VLM_CB", "OMNI")

OPTIONS: Final[Mapping[str, Option]] = {
    "models_path": Option(str, "model.path"),
    "device": Option(str, "engine.device"),
    "plugin_config": Option(str, "engine.plugin_config"),
    "max_num_batched_tokens": Option(Integer(1), "engine.max_num_batched_tokens"),
    "max_num_seqs": Option(Integer(1), "engine.max_num_seqs"),
    "cache_size": Option(Integer(), "engine.cache_size"),
    "enable_prefix_caching": Option(bool, "engine.enable_prefix_caching"),
    "best_of_limit": Option(Integer(1, _UINT32), "limits.best_of_limit"),
    "max_tokens_limit": Option(Integer(1, _UINT32), "limits.max_tokens_limit"),
    "draft_models_path": Option(str, "engine.draft_model"),
    "tool_parser": Option(str, "chat.tool_parser", neutral=("",)),
    "reasoning_parser": Option(str, "chat.reasoning_parser", neutral=("",)),
    "generation_config_path": Option(str, "model.generation_config"),
    "dynamic_split_fuse": Option(
        bool, unused="long prompts are always computed in parts", neutral=(True,)
    ),
    "pipeline_type": Option(
        Choice(PIPELINE_TYPES),
        unused="the model's files say what it is, and batching is always continuous",
        neutral=("AUTO", "LM_CB"),
    ),
    "enable_tool_guided_generation": Option(
        bool, unused="a request asks for guided calls with tool_choice", neutral=(False,)
    ),
    "cache_interval_multiplier": Option(Integer(), unused="it is for linear attention"),
    "chat_template_mode": Option(
        Choice(("MINJA", "JINJA")), unused="templates are rendered by Jinja", neutral=("JINJA",)
    ),
    "cache_eviction_config": Option(_CACHE_EVICTION, unused=_APPROXIMATE),
    "sparse_attention_config": Option(_SPARSE_ATTENTION, unused=_APPROXIMATE),
    "draft_device": Option(str, unused=_SAME_AS_MAIN),
    "draft_max_num_batched_tokens": Option(Integer(), unused=_SAME_AS_MAIN),
    "draft_cache_size": Option(Integer(), unused=_SAME_AS_MAIN),
    "draft_block_size": Option(Integer(), unused=_SAME_AS_MAIN),
    "draft_max_num_seqs": Option(Integer(), unused=_SAME_AS_MAIN),
    "draft_dynamic_split_fuse": Option(bool, unused=_SAME_AS_MAIN),
    "draft_eagle3_mode": Option(bool, unused="", neutral=(False,)),
}
"""OVMS's LLMCalculatorOptions."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a graph says of its model.

    Attributes:
        settings: by "section.field", with paths as they stand there.
        unused: a line on each option that has no use here.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def read_graph(path: Path) -> Node:
    """Reads the only node of a graph. Paths in it become relative to nothing but the working
    directory, as paths elsewhere.

    Raises:
        ConfigurationError: the file cannot be read, is no graph of one language model, or has an
            option that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    try:
        node = _read_node(_llm_node(parse(text)))
    except SyntaxFault as fault:
        raise ConfigurationError(f"{path}, line {fault.line}: {fault}") from None
    _resolve_paths(node, path)
    return node


def _llm_node(graph: Message) -> Field:
    """The field that holds the node's options."""
    nodes = [field for field in graph.all("node") if isinstance(field.value, Message)]
    if len(nodes) != 1:
        raise SyntaxFault(1, f"a graph must have one node, with {_CALCULATOR}, not {len(nodes)}")
    [node] = nodes
    assert isinstance(node.value, Message)
    calculator = _only_text(node, "calculator")
    if calculator != _CALCULATOR:
        raise SyntaxFault(node.line, f"the calculator must be {_CALCULATOR}, not {calculator}")
    if not _only_text(node, "name"):
        raise SyntaxFault(node.line, "the node needs a name")
    found = [
        options
        for holder in (*node.value.all("node_options"), *node.value.all("options"))
        if isinstance(holder.value, Message)
        for options in holder.value.fields
        if options.name.strip("[]").rpartition("/")[2] in _OPTIONS
    ]
    if len(found) != 1:
        raise SyntaxFault(node.line, f"the node needs one {_OPTIONS[0]}, not {len(found)}")
    return found[0]


def _only_text(node: Field, name: str) -> str:
    assert isinstance(node.value, Message)
    values = [found.value for found in node.value.all(name)]
    if len(values) > 1 or not all(isinstance(value, str) for value in values):
        raise SyntaxFault(node.line, f"{name} must be one string")
    return str(values[0]) if values else ""


def _read_node(options: Field) -> Node:
    node = Node()
    given = _read_group(options, Group(OPTIONS, required=("models_path",)), "")
    for name, value in given.items():
        option = OPTIONS[name]
        if value in option.neutral:
            continue
        if option.target is not None:
            node.settings[option.target] = value
        elif name == "draft_eagle3_mode":
            raise SyntaxFault(options.line, "draft_eagle3_mode is not supported")
        else:
            node.unused.append(f"{name} is not used: {option.unused}")
    drafting = [name for name in given if name.startswith("draft_")]
    if drafting and "draft_models_path" not in given:
        raise SyntaxFault(options.line, f"{drafting[0]} needs draft_models_path")
    return node


def _read_group(group: Field, kind: Group, prefix: str) -> dict[str, object]:
    if not isinstance(group.value, Message):
        raise SyntaxFault(group.line, f"{group.name} must be a message in braces")
    values: dict[str, object] = {}
    for found in group.value.fields:
        name = f"{prefix}{found.name}"
        option = kind.options.get(found.name)
        if option is None:
            raise SyntaxFault(found.line, f"there is no option {name}")
        if found.name in values:
            raise SyntaxFault(found.line, f"{name} is given twice")
        values[found.name] = _read_value(found, option.kind, name)
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
            if type(value) is int and low <= value <= high:
                return value
            allowed = f"an integer from {low} to {high}"
        case Choice(names):
            if isinstance(value, Word) and value in names:
                return str(value)
            allowed = f"one of {', '.join(names)}"
        case _ if kind is bool:
            truth = _BOOLEANS.get(value) if isinstance(value, Word) or type(value) is int else None
            if truth is not None:
                return truth
            allowed = "true or false"
        case _ if kind is float:
            if type(value) in (int, float):
                return value
            allowed = "a number"
        case _:
            if isinstance(value, str) and not isinstance(value, Word):
                return value
            allowed = "a string"
    raise SyntaxFault(found.line, f"{name} must be {allowed}, not {_shown(value)}")


_BOOLEANS: Final[Mapping[object, bool]] = {
    "true": True, "True": True, "t": True, 1: True,
    "false": False, "False": False, "f": False, 0: False,
}  # fmt: skip
"""What the text format takes for one."""


def _shown(value: object) -> str:
    if isinstance(value, Message):
        return "a message"
    return str(value) if not isinstance(value, str) or isinstance(value, Word) else repr(value)


def _resolve_paths(node: Node, graph: Path) -> None:
    """`generation_config_path` starts from the model, the others from the graph."""
    for name in ("models_path", "draft_models_path", "generation_config_path"):
        target = OPTIONS[name].target
        assert target is not None
        given = node.settings.get(target)
        if given is None:
            continue
        of_file = name == "generation_config_path"
        path = (node.settings["model.path"] if of_file else graph.parent) / given
        is_model = path.is_dir() or (path.is_file() and path.suffix == ".gguf")
        if not given or not (path.is_file() if of_file else is_model):
            kind = "file" if of_file else "directory or GGUF file of a model"
            raise ConfigurationError(f"{graph}: {name}: there is no {kind} at {path}")
        node.settings[target] = path
