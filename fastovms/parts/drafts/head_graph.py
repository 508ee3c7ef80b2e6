"""Reads draft heads, as exported by optimum-intel: EAGLE-3's, and a model's own.

A head is one decoder layer. At each position its inputs are a token's embedding and the hidden
state of the token before, and it predicts the token after. The hidden state is the target model's.
For drafted tokens, which the target has not computed, the head's own last hidden state is used
instead.

Therefore the target's graph gets another output, `hidden_states`: f32 [tokens, 1, width]. The
head's graph gets an input and an output of that name; the output has rows only for the sampled
tokens. Heads are exported without embeddings, so the head's graph gets those of the target.

The hidden states of EAGLE-3 are the outputs of three layers of the target, concatenated and
projected to the head's width.

A model's own head (multi-token prediction, MTP) takes the target's last hidden state after its
norm. optimum-intel 2.2 exports it as `openvino_mtp_model.xml` for Qwen3.5 and later, with the parts
of the vision model, from the tensors `mtp.*` of the checkpoint (huggingface/optimum-intel 1814).
There must be one layer of them. The inputs are `hidden_states` and `inputs_embeds` [batch, tokens,
width], `attention_mask`, `position_ids` [batch, tokens] and `beam_idx`. The output
`last_hidden_state` has passed a norm of its own. The graph has one layer of key and value state. It
has neither embeddings nor a projection to the vocabulary: those of the target are used, as
openvino.genai does (4065).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.backends.model_task import OWN_HEAD_FILE, has_own_head, own_head_weights
from fastovms.engine.model.devices import reason_of
from fastovms.engine.model.graph_walk import Node, reached
from fastovms.engine.model.model import PagedGraph
from fastovms.engine.model.paging import attention_layers, page_graph, vocabulary_projection
from fastovms.engine.model.step_inputs import HIDDEN_STATES, SAMPLED_TOKEN_INDICES
from fastovms.errors import ConfigurationError

_TABLE: Final = "d2t"
_LAYERS: Final = "hidden_layers_list"
_NUM_LAYERS: Final = 3
_KIND: Final = "eagle3"
_OTHER_KINDS: Final = ("eagle", "medusa", "dflash", "mlpspeculator")
"""Parts of the architecture names of heads that are not EAGLE-3 heads."""

_EMBEDDED: Final = "inputs_embeds"
_LAST_STATE: Final = "last_hidden_state"

_TRANSPARENT: Final = frozenset({"Convert", "Reshape", "Unsqueeze"})
"""The types of nodes that may be between the token ids and the embedding lookup."""


class DraftHeadGraph(NamedTuple):
    """A head that fits a target.

    Attributes:
        graph: the head's graph.
        token_ids: int64, the target's id of each token in the head's vocabulary.
        weights_size: the bytes that a step of one token reads.
    """

    graph: PagedGraph
    token_ids: NDArray[np.int64]
    weights_size: int


class _UnsuitableHead(Exception):
    """Raised if a head does not fit its target; the message is the reason."""


def is_draft_head(config: Mapping[str, object]) -> bool:
    """Returns whether a `config.json` is that of an EAGLE-3 head."""
    return any(_KIND in name for name in _architectures(config))


def other_head(config: Mapping[str, object]) -> str | None:
    """Returns the architecture of a draft head that is not an EAGLE-3 head; None = no such head."""
    names = _architectures(config)
    return next((name for name in names if any(kind in name for kind in _OTHER_KINDS)), None)


def _architectures(config: Mapping[str, object]) -> list[str]:
    names = config.get("architectures")
    return [str(name).lower() for name in names] if isinstance(names, list) else []


def read_draft_head(
    core: ov.Core, head_dir: Path, target: PagedGraph, max_model_len: int
) -> DraftHeadGraph:
    """Reads a head, and adds the output of hidden states to the target's graph in place. Raises
    ConfigurationError if the head cannot be read or does not fit the target; the target's graph is
    then unchanged."""
    is_own = has_own_head(head_dir)
    fit, file = (_fit_own, OWN_HEAD_FILE) if is_own else (_fit, "openvino_model.xml")
    try:
        return fit(core.read_model(head_dir / file), head_dir, target, max_model_len)
    except RuntimeError as error:
        reason = reason_of(error)
    except _UnsuitableHead as error:
        reason = str(error)
    raise ConfigurationError(f"the draft model {head_dir} cannot be used: {reason}")


def _fit(head: ov.Model, head_dir: Path, target: PagedGraph, max_model_len: int) -> DraftHeadGraph:
    _check_inputs(head)
    if target.has_states:
        raise _UnsuitableHead("an EAGLE-3 head cannot draft for a recurrent or hybrid model")
    own = target.model.clone()  # the head's graph takes over nodes of the copy
    embedding = _embedding(own, "the model")
    width = _width(embedding.output(0))
    token_ids = _take_token_ids(head, _vocabulary(target.model, "the model"))
    ports = list(_layer_outputs(target.model, _layer_ids(head, target.model), width))
    projection = _take_projection(head, width)
    _embedding(head, "the head").input(0).replace_source_output(embedding.input_value(0))
    graph = page_graph(head, head_dir, max_model_len, is_draft_head=True)
    if graph.has_states:
        raise _UnsuitableHead("the head is a recurrent or hybrid model")
    _add_own_states(head)
    joined = opset13.concat(ports, -1)
    transpose = projection.get_attributes()["transpose_b"]
    states = opset13.matmul(joined, projection.input_value(1), False, transpose)
    _add_output(target.model, states)
    return DraftHeadGraph(graph, token_ids, _weights_size(head))


def _fit_own(
    head: ov.Model, head_dir: Path, target: PagedGraph, max_model_len: int
) -> DraftHeadGraph:
    """Fits a model's own head to the target."""
    names = {name for port in (*head.inputs, *head.outputs) for name in port.get_names()}
    for name in (_EMBEDDED, HIDDEN_STATES, _LAST_STATE):
        if name not in names:
            raise _UnsuitableHead(f"the head has no input or output named {name}")
    own = target.model.clone()  # the head's graph takes over nodes of the copy
    embedding, projection = _embedding(own, "the model"), vocabulary_projection(own)
    states = _states_of_samples(target.model, "the model")
    width, own_width = _width(states.output(0)), _width(head.input(HIDDEN_STATES))
    if own_width != width:
        raise _UnsuitableHead(
            f"the head is made for hidden states of {own_width} numbers, and the model's have "
            f"{width}"
        )
    _drop_round_trips(head)
    _add_logits(head, projection)
    weights_size = _size_of(head.get_ordered_ops())
    _embed(head, embedding)
    graph = page_graph(head, head_dir, max_model_len, is_draft_head=True)
    _add_output(head, _states_of_samples(head, "the head"))
    _add_output(target.model, states.input_value(0).get_node())
    token_ids = np.arange(_vocabulary(target.model, "the model"), dtype=np.int64)
    graph = replace(graph, weights=own_head_weights(head_dir))
    return DraftHeadGraph(graph, token_ids, weights_size)


def _states_of_samples(model: ov.Model, name: str) -> Node:
    """Returns the node that takes the hidden states of the sampled tokens from those of all."""
    projection = vocabulary_projection(model)
    if projection is not None:
        states = projection.input_value(0).get_node()
        if states.get_type_name() == "Gather":
            return states
    raise _UnsuitableHead(f"the projection of {name} to its vocabulary cannot be found")


def _drop_round_trips(head: ov.Model) -> None:
    """Removes conversions to another type and back. Heads in bfloat16 are exported with those of
    the cached keys and values, among which OpenVINO finds no attention that it can page."""
    for outer in head.get_ordered_ops():
        inner = outer.input_value(0).get_node() if outer.get_type_name() == "Convert" else outer
        if inner is outer or inner.get_type_name() != "Convert":
            continue
        source = inner.input_value(0)
        if source.get_element_type() == outer.get_output_element_type(0):
            for target in outer.output(0).get_target_inputs():
                target.replace_source_output(source)


def _add_logits(head: ov.Model, projection: Node) -> None:
    """Replaces the output of hidden states by the logits that the target's projection makes of
    them."""
    result = head.output(_LAST_STATE).get_node()
    transpose = projection.get_attributes()["transpose_b"]
    states = result.input_value(0)
    logits = opset13.matmul(states, projection.input_value(1), False, transpose)
    head.remove_result(result)
    added = opset13.result(logits, name="logits")
    added.output(0).set_names({"logits"})
    head.add_results([added])


def _embed(head: ov.Model, embedding: Node) -> None:
    """Replaces the input of embeddings by one of tokens, which the target's table embeds."""
    given = head.input(_EMBEDDED).get_node()
    ids = opset13.parameter([-1, -1], ov.Type.i64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    axis = opset13.constant(0, dtype=np.int64)
    embedded = opset13.gather(embedding.input_value(0), opset13.convert(ids, "i32"), axis)
    if embedded.get_output_element_type(0) != ov.Type.f32:
        embedded = opset13.convert(embedded, "f32")
    for target in given.output(0).get_target_inputs():
        target.replace_source_output(embedded.output(0))
    head.remove_parameter(given)
    head.add_parameters([ids])
    head.validate_nodes_and_infer_types()


def _check_inputs(head: ov.Model) -> None:
    names = {name for port in head.inputs for name in port.get_names()}
    if _EMBEDDED in names:
        raise _UnsuitableHead(
            "the head takes embeddings instead of tokens, as heads of vision models do"
        )
    for name in ("input_ids", HIDDEN_STATES):
        if name not in names:
            raise _UnsuitableHead(f"the head has no input named {name}")


def _vocabulary(model: ov.Model, name: str) -> int:
    if not any("logits" in port.get_names() for port in model.outputs):
        raise _UnsuitableHead(f"{name} has no output named logits")
    width = model.output("logits").get_partial_shape()[-1]
    if width.is_dynamic:
        raise _UnsuitableHead(f"the size of the vocabulary of {name} is not known")
    return int(width.get_length())


def _take_token_ids(head: ov.Model, vocab_size: int) -> NDArray[np.int64]:
    """Returns the target's id of each of the head's tokens, int64 [head's vocab_size], and removes
    the `d2t` table, which has the differences of the ids, from the graph's outputs."""
    num_tokens = _vocabulary(head, "the head")
    own_ids = np.arange(num_tokens, dtype=np.int64)
    port = next((port for port in head.outputs if _TABLE in port.get_names()), None)
    if port is None:
        if num_tokens == vocab_size:
            return own_ids
        raise _UnsuitableHead(
            f"the head has no table {_TABLE}, which is needed because the head has {num_tokens} "
            f"tokens and the model {vocab_size}: export the head again with a current optimum-intel"
        )
    table = port.get_node().input_value(0).get_node()
    if table.get_type_name() != "Constant" or list(table.shape) != [num_tokens]:
        raise _UnsuitableHead(
            f"the table {_TABLE} of the head is not a constant with {num_tokens} numbers"
        )
    token_ids: NDArray[np.int64] = own_ids + table.data.astype(np.int64)
    head.remove_result(port.get_node())
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        worst = int(token_ids[np.argmax(np.abs(token_ids))])
        raise _UnsuitableHead(
            f"the table {_TABLE} of the head names token {worst}, and the model has {vocab_size} "
            "tokens"
        )
    if num_tokens < vocab_size and not table.data.any():
        raise _UnsuitableHead(
            f"the table {_TABLE} of the head is empty: the checkpoint was exported without it"
        )
    return token_ids


def _embedding(model: ov.Model, name: str) -> Node:
    """Returns the node that looks up the token embeddings."""
    ids = model.input("input_ids").get_node()
    for node in reached([ids], _consumers_through):
        if node.get_type_name() == "Gather" and len(node.input_value(0).get_partial_shape()) == 2:
            return node
    raise _UnsuitableHead(f"{name} has no table of embeddings that can be found")


def _consumers_through(node: Node) -> list[Node]:
    if node.get_type_name() not in {"Parameter", *_TRANSPARENT}:
        return []
    targets = node.output(0).get_target_inputs()
    return [
        target.get_node()
        for target in targets
        if target.get_index() == (target.get_node().get_type_name() == "Gather")
    ]


def _width(port: Any) -> int:
    width = port.get_partial_shape()[-1]
    if width.is_dynamic:
        raise _UnsuitableHead("the width of the model's hidden states is not known")
    return int(width.get_length())


def _layer_ids(head: ov.Model, target: ov.Model) -> Sequence[int]:
    """Returns the indices of the target's layers whose outputs the head reads. Heads are trained on
    the inputs of layers 2, n / 2 and n - 3 of n, which are the outputs of the preceding layers. An
    export may name other layers."""
    num_layers = len(attention_layers(target))
    if head.has_rt_info([_LAYERS]):
        text = str(head.get_rt_info([_LAYERS]).value)
        named = [part.strip() for part in text.strip("[]() ").replace(",", " ").split()]
        layers = [int(part) for part in named if part.isdecimal()]
        if len(layers) != len(named) or len(layers) != _NUM_LAYERS:
            raise _UnsuitableHead(
                f"{_LAYERS} of the head must be {_NUM_LAYERS} numbers of layers, not {text!r}"
            )
        if max(layers) > num_layers - 2:
            raise _UnsuitableHead(
                f"{_LAYERS} of the head is {text}, and of the {num_layers} layers of the model the "
                f"last that can be used is {num_layers - 2}"
            )
        return layers
    layers = [1, num_layers // 2 - 1, num_layers - 4]
    if not 0 <= layers[0] < layers[1] < layers[2]:
        raise _UnsuitableHead(f"the model has {num_layers} layers: it must have at least 7")
    return layers


def _layer_outputs(target: ov.Model, layer_ids: Sequence[int], width: int) -> Iterator[Any]:
    """Yields the output of each layer: the input of the next layer's attention."""
    layers = attention_layers(target)
    for layer_id in layer_ids:
        query = layers[layer_id + 1].input_value(0).get_node()
        yield _residual(query, width, f"layer {layer_id} of the model").output(0)


def _residual(node: Node, width: int, name: str) -> Node:
    """Returns the last residual sum of hidden states that a node is computed from."""
    for found in reached([node]):
        if found.get_type_name() != "Add":
            continue
        shapes = [found.get_input_partial_shape(index) for index in (0, 1)]
        if all(len(s) == 3 and s[0].is_dynamic and s[2] == ov.Dimension(width) for s in shapes):
            return found
    raise _UnsuitableHead(f"the hidden states of {name} cannot be found")


def _take_projection(head: ov.Model, width: int) -> Node:
    """Removes the projection of the target's hidden states to the head's width from the head's
    graph, and returns the MatMul. Raises _UnsuitableHead if the head has no such matrix, or one for
    another model."""
    states = head.input(HIDDEN_STATES).get_node()
    targets = states.output(0).get_target_inputs()
    nodes = [target.get_node() for target in targets if target.get_index() == 0]
    projection = next((node for node in nodes if node.get_type_name() == "MatMul"), None)
    if projection is None:
        raise _UnsuitableHead(f"the head has no matrix that projects {HIDDEN_STATES}")
    shape = projection.get_input_partial_shape(1)
    if shape.is_dynamic or len(shape) != 2:
        raise _UnsuitableHead(f"the matrix that projects {HIDDEN_STATES} has no fixed shape")
    rows, columns = projection.get_input_shape(1)
    if not projection.get_attributes()["transpose_b"]:
        rows, columns = columns, rows
    if columns != _NUM_LAYERS * width:
        raise _UnsuitableHead(
            f"the head is made for hidden states of {columns / _NUM_LAYERS:g} numbers, and the "
            f"model's have {width}"
        )
    if rows != width:
        raise _UnsuitableHead(
            f"the hidden states of the head have {rows} numbers: the head cannot take the "
            f"embeddings of the model, which have {width}"
        )
    for target in projection.output(0).get_target_inputs():
        target.replace_source_output(states.output(0))
    states.set_partial_shape(ov.PartialShape([-1, -1, rows]))
    head.validate_nodes_and_infer_types()
    return projection


def _add_own_states(head: ov.Model) -> None:
    """Adds an output with the head's own hidden states."""
    indices = next((p for p in head.inputs if SAMPLED_TOKEN_INDICES in p.get_names()), None)
    if indices is None:
        raise _UnsuitableHead("the projection of the head to its vocabulary cannot be found")
    width = _width(head.input(HIDDEN_STATES))
    states = _residual(head.output("logits").get_node(), width, "the head")
    axis = opset13.constant(0, dtype=np.int64)
    _add_output(head, opset13.gather(states, indices.get_node(), axis))


def _add_output(model: ov.Model, states: Node) -> None:
    if states.get_output_element_type(0) != ov.Type.f32:
        states = opset13.convert(states, "f32")
    result = opset13.result(states, name=HIDDEN_STATES)
    result.output(0).set_names({HIDDEN_STATES})
    model.add_results([result])
    model.validate_nodes_and_infer_types()


def _weights_size(head: ov.Model) -> int:
    """Returns the bytes of the head's weights without the embeddings."""
    embedding = _embedding(head, "the head").input_value(0).get_node()
    embedded = {node.get_instance_id() for node in reached([embedding])}
    nodes = head.get_ordered_ops()
    return _size_of(node for node in nodes if node.get_instance_id() not in embedded)


def _size_of(nodes: Iterable[Node]) -> int:
    """Returns the bytes of the constants among nodes."""
    return sum(
        math.prod(node.shape) * node.get_element_type().bitwidth // 8
        for node in nodes
        if node.get_type_name() == "Constant"
    )
