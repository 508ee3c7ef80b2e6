"""Shortens graphs of a model to one layer of each kind, so that they can be compared in a fraction
of the time.

A graph is a chain of parts; the only input of a part that depends on the text is the hidden states
of the part before it. A layer begins with a part that has attention or another state. Layers are of
one kind if all their operations, attributes, shapes and small constants are equal in all graphs, so
that they differ only in their weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.engine.model.graph_walk import inputs_of, reached

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_MAX_VALUES: Final = 16
"""The maximum number of values of a constant that are compared; larger constants are weights. The
constants of an attention operation are compared whatever their size."""

_ATTENTION: Final = "PagedAttentionExtension"
_SINKS: Final = 20
"""The input of it that is as large as weights are, and differs between layers as these do."""
_WITH_BODIES: Final = frozenset({"If", "Loop", "TensorIterator"})
"""Operations with inner graphs. Layers with such operations never count as equal."""


_NUMBER: Final = re.compile(r"\d+")
_VARIABLE: Final = "variable_id"
_INPUT: Final = "input_ids"


class _Layer(NamedTuple):
    """A layer: a part of the chain with a state, and the following parts without a state.

    Attributes:
        first: the node whose output is the layer's input.
        last: the node whose output is the layer's output.
        kind: equal for layers of one kind.
    """

    first: Node
    last: Node
    kind: tuple[int, ...]


def cut_layers(*models: ov.Model) -> bool:
    """Removes layers from graphs of one model, in place, so that one layer of each kind is left.
    Returns False if no layer can be removed; the graphs are then unchanged. Raises RuntimeError if
    OpenVINO rejects the shorter graph; the graphs are then unusable.

    Args:
        models: for example the exported and the paged graph.
    """
    chains = list(map(_layers, models))
    if len(set(map(len, chains))) != 1:
        return False
    kept: set[object] = set()
    is_dropped = []
    for layers in zip(*chains, strict=True):
        kind = tuple(layer.kind for layer in layers)
        is_dropped.append(kind in kept and all(map(_can_be_dropped, layers)))
        kept.add(kind)
    if not any(is_dropped):
        return False
    for model, chain in zip(models, chains, strict=True):
        _drop(model, chain, is_dropped)
    return True


def _can_be_dropped(layer: _Layer) -> bool:
    before, after = layer.first.output(0), layer.last.output(0)
    return bool(
        before.get_element_type() == after.get_element_type()
        and before.get_partial_shape() == after.get_partial_shape()
    )


def _drop(model: ov.Model, layers: Sequence[_Layer], is_dropped: Sequence[bool]) -> None:
    hidden = layers[0].first.output(0)
    for layer, drop in zip(layers, is_dropped, strict=True):
        if drop:
            layer.last.output(0).replace(hidden)
        else:
            hidden = layer.last.output(0)
    left = list(reached([model.output("logits").get_node()]))
    states = {node.get_attributes()[_VARIABLE] for node in left if _reads_state(node)}
    for sink in model.get_sinks():
        if sink.get_variable_id() not in states:
            model.remove_sink(sink)
    for variable in model.get_variables():
        if variable.get_info().variable_id not in states:
            model.remove_variable(variable)
    used = {node.get_instance_id() for node in left}
    for parameter in model.get_parameters():
        if parameter.get_instance_id() not in used and _is_cache(parameter):
            model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()


def _reads_state(node: Node) -> bool:
    return bool(node.get_type_name() == "ReadValue")


def _is_cache(node: Node) -> bool:
    """Returns whether a node is an input of a single layer, whose name contains the layer's
    number."""
    return node.get_type_name() == "Parameter" and "." in node.output(0).get_any_name()


def _layers(model: ov.Model) -> list[_Layer]:
    """Returns the layers of a graph in order; an empty list if the graph is not a chain."""
    structure = _Structure(model)
    layers: list[_Layer] = []
    for part in structure.parts():
        if part.has_state:
            layers.append(_Layer(part.first, part.last, (part.kind,)))
        elif layers:
            layer = layers[-1]
            layers[-1] = _Layer(layer.first, part.last, (*layer.kind, part.kind))
    return layers


class _Part(NamedTuple):
    """The nodes between two nodes of the chain.

    Attributes:
        first: the node whose output is the part's input.
        last: the node whose output is the part's output.
        kind: equal for parts with equal computations.
        has_state: whether the part has a KV cache or another state.
    """

    first: Node
    last: Node
    kind: int
    has_state: bool


class _Description(NamedTuple):
    """A description of a node and all its inputs, apart from hidden states.

    Attributes:
        value: a hash, equal for nodes with equal computations.
        has_state: whether the node or an input is a KV cache or another state.
    """

    value: int
    has_state: bool


class _Structure:
    """Splits a graph into the parts of a chain."""

    def __init__(self, model: ov.Model) -> None:
        self._nodes = {node.get_instance_id(): node for node in model.get_ordered_ops()}
        self._sources = {
            key: [(port.get_node().get_instance_id(), port.get_index()) for port in values]
            for key, values in ((key, node.input_values()) for key, node in self._nodes.items())
        }
        self._known: dict[int, _Description] = {}
        self._hidden: list[int] = []
        """The ids of the nodes between tokens and logits, which compute hidden states, in order."""
        self._places: dict[int, int] = {}
        needed = {n.get_instance_id() for n in reached([model.output("logits").get_node()])}
        for key, node in self._nodes.items():
            if key in needed and (_takes_tokens(node) or self._takes_hidden(key)):
                self._places[key] = len(self._hidden)
                self._hidden.append(key)

    def _takes_hidden(self, key: int) -> bool:
        """Returns whether a node computes with hidden states; taking only their length does not
        count."""
        is_reached = any(source in self._places for source, _ in self._sources[key])
        return is_reached and self._nodes[key].get_type_name() != "ShapeOf"

    def parts(self) -> list[_Part]:
        """Returns the parts of the chain, in order. Parts are connected only by the hidden states
        at their ends."""
        last_use = list(range(len(self._hidden)))
        for place, key in enumerate(self._hidden):
            for source, _ in self._sources[key]:
                if source in self._places:
                    last_use[self._places[source]] = place
        parts: list[_Part] = []
        begin, reach = 0, last_use[0] if last_use else 0
        for place in range(1, len(self._hidden)):
            if reach <= place and self._nodes[self._hidden[place]].get_output_size() == 1:
                parts.append(self._part(begin, place))
                begin = place
            reach = max(reach, last_use[place])
        return parts

    def _part(self, begin: int, end: int) -> _Part:
        first = self._hidden[begin]
        self._known[first] = self._of_data(first)
        described = [self._describe(key) for key in self._hidden[begin + 1 : end + 1]]
        has_state = any(each.has_state for each in described)
        last = self._nodes[self._hidden[end]]
        return _Part(self._nodes[first], last, described[-1].value, has_state)

    def _of_data(self, key: int) -> _Description:
        """Returns a description of hidden states by their shape and type alone."""
        output = self._nodes[key].output(0)
        shape = str(output.get_partial_shape())
        return _Description(hash((shape, str(output.get_element_type()))), False)

    def _describe(self, wanted: int) -> _Description:
        pending = [wanted]
        while pending:  # a recursion would be too deep
            key = pending[-1]
            missing = [source for source, _ in self._sources[key] if source not in self._known]
            if key in self._known or self._is_length(key) or not missing:
                pending.pop()
                if key not in self._known:
                    self._known[key] = self._from_sources(key)
            else:
                pending += missing
        return self._known[wanted]

    def _is_length(self, key: int) -> bool:
        """Returns whether a node reads the shape of hidden states."""
        if self._nodes[key].get_type_name() != "ShapeOf":
            return False
        return self._sources[key][0][0] in self._places

    def _from_sources(self, key: int) -> _Description:
        node = self._nodes[key]
        if self._is_length(key):
            return self._of_data(self._sources[key][0][0])
        found = [self._known[source] for source, _ in self._sources[key]]
        values = [
            (each.value, port) for each, (_, port) in zip(found, self._sources[key], strict=True)
        ]
        has_state = _reads_state(node) or _is_cache(node) or any(e.has_state for e in found)
        return _Description(hash((_own(node), *values)), has_state)


def _takes_tokens(node: Node) -> bool:
    return node.get_type_name() == "Parameter" and _INPUT in node.output(0).get_names()


def _own(node: Node) -> tuple[object, ...]:
    """Returns a node's type, attributes and small values, without its inputs."""
    kind = node.get_type_name()
    if kind == "Constant":
        return _of_constant(node, _MAX_VALUES)
    if kind == "Parameter":
        output = node.output(0)
        name = _NUMBER.sub("", output.get_any_name())
        return kind, name, str(output.get_partial_shape()), str(output.get_element_type())
    if kind in _WITH_BODIES:
        return kind, node.get_instance_id()
    attributes = node.get_attributes()
    attributes.pop(_VARIABLE, None)
    own: tuple[object, ...] = (kind, node.get_output_size(), str(sorted(attributes.items())))
    if kind == _ATTENTION:
        inputs = [each for place, each in enumerate(inputs_of(node)) if place != _SINKS]
        constants = [each for each in inputs if each.get_type_name() == "Constant"]
        own += tuple(_of_constant(each, None) for each in constants)
    return own


def _of_constant(node: Node, max_values: int | None) -> tuple[object, ...]:
    """Returns a constant's shape and type, and its values if there are at most `max_values`."""
    output = node.output(0)
    shape, element_type = tuple(output.get_shape()), output.get_element_type()
    is_whole = max_values is None or (math.prod(shape) <= max_values and element_type.bitwidth >= 8)
    return "Constant", shape, str(element_type), node.data.tobytes() if is_whole else b""
