"""Reads the node options of an OpenVINO Model Server graph (graph.pbtxt), as settings.

What MediaPipe says around them about streams and their handlers is read over: there is one way to
run a language model here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fastovms.config.settings import ENCODER, ENGINE, FILES, ConfigField, Settings
from fastovms.errors import ConfigurationError
from fastovms.ovms.calculators import CALCULATORS, Calculator
from fastovms.ovms.options import Choice, Group, Integer, Kind
from fastovms.ovms.plugin_config import parse_plugin_config
from fastovms.ovms.textproto import Field, Message, SyntaxFault, Word, parse

GRAPH_FILE: Final = "graph.pbtxt"
MODEL_FILES: Final = ("openvino_model.xml", "openvino_language_model.xml")
"""The files of which one is in the directory of a model."""

MAX_INTEGER: Final = 2**64 - 1
"""The largest value of an option that has no bound of its own."""

OPTIONS: Final = CALCULATORS["HttpLLMCalculator"].options
"""OVMS's LLMCalculatorOptions."""

_NAMES: Final = ", ".join(CALCULATORS)


@dataclass(frozen=True, slots=True)
class Node:
    """What a graph says of its model.

    Attributes:
        settings: what it sets.
        unused: a line on each option that has no use here.
    """

    settings: Settings
    unused: list[str]


def read_graph(path: Path) -> Node:
    """Reads the only node of a graph. Paths in it become relative to nothing but the working
    directory, as paths elsewhere.

    Raises:
        ConfigurationError: the file cannot be read, is no graph of one model, or has an
            option that is wrong.
    """
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
    """Returns what the only node runs, and the field that holds its options."""
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
    """Returns what the options set, as it stands there, and a line on each that sets nothing."""
    given = _read_group(options, calculator.group, "")
    used: dict[ConfigField, Any] = dict(calculator.implied)
    unused: list[str] = []
    for name, value in given.items():
        option = calculator.options[name]
        if value in option.neutral:
            continue
        if option.field is not None:
            used[option.field] = str(value).lower() if option.field == ENCODER.pooling else value
        elif option.unused is not None:
            unused.append(f"{name} is not used: {option.unused}")
        else:
            raise SyntaxFault(options.line, f"{name} is not supported")
    drafting = [name for name in given if name.startswith("draft_")]
    if drafting and "draft_models_path" not in given:
        raise SyntaxFault(options.line, f"{drafting[0]} needs draft_models_path")
    return used, unused


def _read_group(group: Field, kind: Group, prefix: str) -> dict[str, object]:
    if not isinstance(group.value, Message):
        raise SyntaxFault(group.line, f"{group.name} must be a message in braces")
    values: dict[str, object] = {}
    for found in group.value.fields:
        name = f"{prefix}{found.name}"
        inner = kind.options.get(found.name)
        if inner is None:
            raise SyntaxFault(found.line, f"there is no option {name}")
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
"""The words that the text format takes for a boolean."""


def _shown(value: object) -> str:
    if isinstance(value, Message):
        return "a message"
    return str(value) if not isinstance(value, str) or isinstance(value, Word) else repr(value)


def _resolve_paths(given: dict[ConfigField, Any], graph: Path) -> None:
    """Resolves paths: `generation_config_path` starts from the model, the others from the graph."""
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


_PATHS: Final = {
    FILES.path: "models_path",
    ENGINE.draft_model: "draft_models_path",
    FILES.generation_config: "generation_config_path",
}
