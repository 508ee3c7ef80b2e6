"""The graph of an encoder: its pooling, its segments and its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.embeddings.encoder import EncoderInfo, EncoderText
from fastovms.parts.embeddings.pooling import Pooling

_SMALL: Final = 1024
"""The number of tokens of a batch above which the cost of a new tensor shape is negligible."""

_MIN_STEP: Final = 8

_SHARE_OF_STEP: Final = 8
"""Lengths are rounded up so that padding is at most 1 / this number of the length."""


def padded_length(num_texts: int, longest: int, limit: int | None = None) -> int:
    """Returns the number of tokens per row of a batch, padding included. `limit` is the model's
    maximum length; None = unlimited."""
    if num_texts * longest >= _SMALL:
        return longest
    step = max(_MIN_STEP, _power_of_two(longest) // _SHARE_OF_STEP)
    length = -(-longest // step) * step
    return length if limit is None else max(longest, min(length, limit))


def num_rows(longest: int, max_tokens: int) -> int:
    """Returns the maximum number of texts in a batch; a power of two for small batches."""
    room = max(1, max_tokens // padded_length(1, longest))
    return room if room * longest >= _SMALL else _power_of_two(room)


def _power_of_two(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


_SMALLEST: Final = 1e-12
"""The minimum divisor, to avoid division by zero."""

Value = Any
"""An output of a node; OpenVINO's stubs do not have this type."""


def pooled(states: Value, attention_mask: Value, pooling: Pooling) -> Value:
    """Returns one pooled state for each text: f32 [B, H].

    Args:
        states: f32 [B, T, H].
        attention_mask: i64 [B, T]; 0 = padding, which is at the end.
    """
    if pooling is Pooling.MEAN:
        weights = ops.unsqueeze(ops.convert(attention_mask, np.float32), _indices(-1))
        total = ops.reduce_sum(ops.multiply(states, weights), _indices(1), False)
        count = ops.reduce_sum(weights, _indices(1), False)
        return ops.divide(total, ops.maximum(count, ops.constant(np.float32(_SMALLEST)))).output(0)
    if pooling is Pooling.CLS:
        return ops.gather(states, ops.constant(np.int64(0)), ops.constant(np.int64(1))).output(0)
    return last_of(states, attention_mask)


def last_of(states: Value, attention_mask: Value) -> Value:
    """Returns the state of each text's last token: f32 [B, H]."""
    length = ops.reduce_sum(attention_mask, _indices(1), False)
    last = ops.subtract(length, ops.constant(np.int64(1)))
    return ops.gather(states, last, ops.constant(np.int64(1)), batch_dims=1).output(0)


def _indices(*values: int) -> Value:
    return ops.constant(np.array(values, np.int64))


CARRIED: Final = "carried"
"""The name of the input and output that connect segments."""

_WEIGHTED: Final = "MatMul"

_EVEN: Final = 0.9
"""The minimum weights of a segment, as a fraction of an equal share."""


def cut(model: ov.Model, max_segments: int) -> list[ov.Model]:
    """Splits a graph with one output into segments with about equal weights, between which other
    models may compute. The output of each segment is the first input of the next; further inputs
    have the names of the graph's inputs. The graph must not be used afterwards.

    A graph can be cut after a node through which all results of weights pass: in a transformer, the
    residual stream between layers. Other inputs of a segment, such as the attention mask, are
    recomputed from the graph's inputs. There are at most `max_segments` segments, and fewer if the
    graph has fewer such nodes.
    """
    nodes = model.get_ordered_ops()
    places = _chosen(list(_places(nodes)), _weights(nodes), max_segments)
    segments, carried = [], None
    inputs = model.get_parameters()
    for node in places:
        output = node.output(0)
        consumers = list(output.get_target_inputs())
        segments.append(_segment(output, carried, inputs))
        shape = output.get_partial_shape()
        carried = ops.parameter(shape, np.float32, name=CARRIED)
        carried.output(0).set_names({CARRIED})
        for consumer in consumers:
            consumer.replace_source_output(carried.output(0))
    [result] = model.get_results()
    segments.append(_segment(result.input_value(0), carried, inputs))
    return segments


def _segment(output: Any, carried: Any, inputs: Sequence[Any]) -> ov.Model:
    result = ops.result(output)
    first = [] if carried is None else [carried]
    reached = _ancestors(result)
    used = [node for node in (*first, *inputs) if node.get_name() in reached]
    return ov.Model([result], used, "segment")


def _ancestors(node: Any) -> set[str]:
    found: set[str] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.get_name() not in found:
            found.add(node.get_name())
            waiting += [value.get_node() for value in node.input_values()]
    return found


def _places(nodes: Sequence[Any]) -> Iterator[Any]:
    """Yields the nodes after which the graph can be cut, in order."""
    constant, weighted = set(), set()
    # By node, the number of its weighted outputs without a consumer so far.
    num_open: dict[str, int] = {}
    for node in nodes:
        name, kind = node.get_name(), node.get_type_name()
        sources = [value.get_node().get_name() for value in node.input_values()]
        if kind == "Constant" or (sources and all(source in constant for source in sources)):
            constant.add(name)
            continue
        for source in sources:
            if source in num_open:
                num_open[source] -= 1
                if not num_open[source]:
                    del num_open[source]
        applies = kind == _WEIGHTED and any(source in constant for source in sources)
        if kind == "ShapeOf" or not (applies or any(source in weighted for source in sources)):
            continue
        weighted.add(name)
        outputs = node.outputs()
        num_open[name] = sum(len(output.get_target_inputs()) for output in outputs)
        is_alone = len(num_open) == 1 and len(outputs) == 1
        if is_alone and outputs[0].get_element_type() == ov.Type.f32:
            yield node


def _weights(nodes: Sequence[Any]) -> dict[str, int]:
    """Returns, for each node, the number of weight elements used up to and including the node."""
    constant: set[str] = set()
    sizes: dict[str, int] = {}
    total = 0
    for node in nodes:
        values = node.input_values()
        if node.get_type_name() == "Constant" or (
            values and all(value.get_node().get_name() in constant for value in values)
        ):
            constant.add(node.get_name())
        elif node.get_type_name() == _WEIGHTED:
            for value in values:
                if value.get_node().get_name() in constant:
                    total += int(np.prod(value.get_shape()))
        sizes[node.get_name()] = total
    return sizes


def _chosen(places: Sequence[Any], sizes: dict[str, int], max_segments: int) -> list[Any]:
    """Returns the nodes to cut after, so that segments have about equal weights. If
    there are no weights between several nodes, the last one is used, so that OpenVINO can fuse
    operations."""
    whole = max(sizes.values(), default=0)
    share = whole / max_segments
    last_of_size = {sizes[node.get_name()]: node for node in places}
    chosen, last = [], 0
    for size, node in last_of_size.items():
        if size - last >= _EVEN * share and size < whole:
            chosen.append(node)
            last = size
    return chosen


INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx")
"""The inputs that a graph may have."""

ANSWERS: Final = ("no", "yes")
"""The tokens whose logits are the score of a pair for a decoder-based reranker."""

_SENTENCE: Final = "sentence_embedding"


class EncoderGraph(NamedTuple):
    """A graph that computes f32 [B, width] from texts. `vocab_size` is the number of rows of its
    embedding table; None = unknown."""

    model: ov.Model
    info: EncoderInfo
    vocab_size: int | None


def read_encoder(
    path: Path, task: Task, pooling: Pooling | None, vocabulary: Callable[[], Mapping[bytes, int]]
) -> EncoderGraph:
    """Reads the graph of an encoder. Raises ConfigurationError if the graph does not fit the task.

    Args:
        pooling: how token states are pooled; None = the graph has pooled outputs.
        vocabulary: returns the token ids by text, for decoder-based rerankers.
    """
    try:
        model = ov.Core().read_model(path)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigurationError(f"{path} cannot be read: {reason}") from error
    _check_inputs(model, path)
    _forget_past(model)
    mask = _input(model, "attention_mask")
    if task is Task.EMBEDDINGS:
        output, joins_pairs = _vectors(model, mask, pooling, path), False
    else:
        output, joins_pairs = _logits(model, mask, vocabulary, path)
    output.get_node().set_friendly_name("encoded")
    width = output.get_partial_shape()[1]
    if not width.is_static or output.get_element_type() != ov.Type.f32:
        raise ConfigurationError(f"{path} cannot be served: its output has no fixed size")
    whole = ov.Model([ops.result(output)], model.get_parameters(), "encoder")
    info = EncoderInfo(task, width.get_length(), joins_pairs)
    return EncoderGraph(whole, info, _vocab_size(model))


def _check_inputs(model: ov.Model, path: Path) -> None:
    names = [value.get_any_name() for value in model.inputs]
    unknown = [name for name in names if name not in INPUTS]
    missing = [name for name in INPUTS[:2] if name not in names]
    if unknown or missing:
        reason = f"the input {unknown[0]}" if unknown else f"no input {missing[0]}"
        raise ConfigurationError(f"{path} cannot be served: its graph has {reason}")


def _input(model: ov.Model, name: str) -> Any:
    return model.input(name).get_node().output(0)


def _forget_past(model: ov.Model) -> None:
    """Replaces a decoder's KV cache by an empty constant, so that each text is computed in one
    pass."""
    for sink in list(model.get_sinks()):
        model.remove_sink(sink)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue" and node.get_input_size():
            for consumer in list(node.output(0).get_target_inputs()):
                consumer.replace_source_output(node.input_value(0))


def _vectors(model: ov.Model, mask: Any, pooling: Pooling | None, path: Path) -> Any:
    values = {output.get_any_name(): output.get_node().input_value(0) for output in model.outputs}
    if pooling is None and _SENTENCE in values:
        return values[_SENTENCE]
    for value in values.values():
        if value.get_partial_shape().rank.get_length() == 3:
            return pooled(value, mask, pooling or Pooling.CLS)
    if _SENTENCE in values:
        return values[_SENTENCE]
    raise ConfigurationError(
        f"{path} cannot be served: its graph has no output with one hidden state per token"
    )


def _logits(
    model: ov.Model, mask: Any, vocabulary: Callable[[], Mapping[bytes, int]], path: Path
) -> tuple[Any, bool]:
    """Returns the one or two logits of each pair, and whether the model is a decoder, which reads a
    pair as one text."""
    logits = model.output("logits").get_node().input_value(0)
    rank = logits.get_partial_shape().rank.get_length()
    if rank == 2:
        width = logits.get_partial_shape()[1]
        if not width.is_static or width.get_length() > len(ANSWERS):
            raise ConfigurationError(
                f"{path} cannot be served: it is a classifier of {width} classes, but a "
                "reranker has one or two"
            )
        return logits, False
    ids = [vocabulary().get(answer.encode()) for answer in ANSWERS] if rank == 3 else [None]
    if None in ids:
        raise ConfigurationError(
            f"{path} cannot be served as a reranker: its vocabulary has no token "
            f"{' and '.join(ANSWERS)}"
        )
    return _answer_logits(logits, mask, np.array(ids, np.int64)), True


def _answer_logits(logits: Any, mask: Any, ids: Any) -> Any:
    """Returns the logits of the two answer tokens at the last position: f32 [B, 2]. Logits of other
    tokens are not computed."""
    head = logits.get_node()
    while head.get_type_name() == "Convert":
        head = head.input_value(0).get_node()
    if head.get_type_name() != "MatMul":
        return ops.gather(
            last_of(logits, mask), ops.constant(ids), ops.constant(np.int64(1))
        ).output(0)
    states, weights = head.input_value(0), head.input_value(1)
    is_transposed = bool(head.get_attributes()["transpose_b"])
    axis = ops.constant(np.int64(0 if is_transposed else 1))
    rows = _value_of(ops.gather(weights, ops.constant(ids), axis))
    last = last_of(states, mask)
    return ops.matmul(last, ops.constant(rows), False, is_transposed).output(0)


def _value_of(node: Any) -> Any:
    """Returns the value of a node that depends only on constants."""
    converted = ops.convert(node, np.float32)
    compiled = ov.Core().compile_model(ov.Model([ops.result(converted)], [], "rows"), "CPU")
    return compiled([])[0].copy()


def _vocab_size(model: ov.Model) -> int | None:
    """Returns the number of rows of the embedding table; None = unknown."""
    waiting = [_input(model, "input_ids")]
    for value in waiting:
        for consumer in value.get_target_inputs():
            node = consumer.get_node()
            if node.get_type_name() == "Convert":
                waiting.append(node.output(0))
            elif node.get_type_name() == "Gather" and consumer.get_index() == 1:
                rows = node.input_value(0).get_partial_shape()[0]
                if rows.is_static:
                    return int(rows.get_length())
    return None


MAX_SEGMENTS: Final = 16
"""The maximum number of segments of a graph. More segments would cost more time than shorter slices
gain."""


class EncoderModel:
    """A compiled encoder. Not thread-safe.

    Attributes:
        info: the kind of the encoder's results.
        num_segments: the number of segments that a batch passes through.
    """

    def __init__(
        self,
        graph: EncoderGraph,
        *,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        pad_token_id: int = 0,
        max_length: int | None = None,
    ) -> None:
        """Raises ConfigurationError if the device cannot run the model. `max_length` is the maximum
        length of a text in tokens; None = unlimited."""
        self.info = graph.info
        self._pad_token_id = pad_token_id
        self._max_length = max_length
        segments = cut(graph.model, MAX_SEGMENTS if device.startswith("CPU") else 1)
        try:
            core = ov.Core()
            compiled = [
                core.compile_model(each, device, {**(properties or {})}) for each in segments
            ]
            self._requests: list[Any] = [each.create_infer_request() for each in compiled]
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigurationError(f"{device} cannot run the model: {reason}") from error
        self._names = [[value.get_any_name() for value in each.inputs] for each in compiled]

    @property
    def num_segments(self) -> int:
        return len(self._requests)

    def batch(self, texts: Sequence[EncoderText]) -> EncoderBatch:
        """Returns a batch of the texts, padded to at least the longest."""
        longest = max(len(text.token_ids) for text in texts)
        length = padded_length(len(texts), longest, self._max_length)
        shape = len(texts), length
        token_ids = np.full(shape, self._pad_token_id, np.int64)
        attention_mask = np.zeros(shape, np.int64)
        token_type_ids = np.zeros(shape, np.int64)
        for row, text in enumerate(texts):
            end = len(text.token_ids)
            token_ids[row, :end] = text.token_ids
            attention_mask[row, :end] = 1
            if text.type_ids is not None:
                token_type_ids[row, :end] = text.type_ids
        return EncoderBatch(
            {
                "input_ids": token_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
                "position_ids": np.tile(np.arange(length, dtype=np.int64), (len(texts), 1)),
                "beam_idx": np.zeros(len(texts), np.int32),
            }
        )

    def compute(self, batch: EncoderBatch, segment: int) -> None:
        """Computes the next segment for a batch."""
        request = self._requests[segment]
        for index, name in enumerate(self._names[segment]):
            tensor = batch.carried if name == CARRIED else ov.Tensor(batch.inputs[name])
            request.set_input_tensor(index, tensor)
        request.infer()
        batch.carried = request.get_output_tensor(0)

    def warm_up(self) -> None:
        """Computes one text, because OpenVINO compiles kernels at their first use."""
        batch = self.batch([EncoderText(np.full(1, self._pad_token_id, np.int64))])
        for segment in range(self.num_segments):
            self.compute(batch, segment)


class EncoderBatch:
    """A batch of texts.

    Attributes:
        inputs: the graph's inputs by name, each with B rows.
        carried: the output of the last computed segment; valid until that segment runs again.
    """

    __slots__ = ("carried", "inputs")

    def __init__(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        self.inputs = inputs
        self.carried: Any = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens, padding included."""
        return int(self.inputs["input_ids"].size)

    @property
    def rows(self) -> NDArray[np.float32]:
        """The output of the last segment: f32 [B, width]."""
        rows: NDArray[np.float32] = self.carried.data
        return rows
