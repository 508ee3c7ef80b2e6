"""Reads the graph of an encoder, and makes it one of whole texts: a vector or some logits for each.

Decoders lose their cache: each text is computed once, as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from fastovms.backends.encoder.pooling import last_of, pooled
from fastovms.encoding import EncoderInfo, Pooling, Task
from fastovms.errors import ConfigurationError

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx")
"""The inputs that a graph may have."""

ANSWERS: Final = ("no", "yes")
"""The tokens between which a decoder decides that scores a pair."""

_SENTENCE: Final = "sentence_embedding"


class EncoderGraph(NamedTuple):
    """A graph that computes f32 [B, width] of texts.

    Attributes:
        vocab_size: how many tokens its embedding has; None = nobody knows.
    """

    model: ov.Model
    info: EncoderInfo
    vocab_size: int | None


def read_encoder(
    path: Path, task: Task, pooling: Pooling | None, vocabulary: Callable[[], Mapping[bytes, int]]
) -> EncoderGraph:
    """Reads a graph.

    Args:
        pooling: None = as the graph itself does, where it does.
        vocabulary: returns the ids of tokens, for decoders that score.

    Raises:
        ConfigurationError: it is none that could do the task.
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
    """Makes a decoder's cache empty for good, so that each text is computed as a whole."""
    for sink in list(model.get_sinks()):
        model.remove_sink(sink)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue" and node.get_input_size():
            _redirect(node.output(0), node.input_value(0))


def _redirect(old: Any, new: Any) -> None:
    for consumer in list(old.get_target_inputs()):
        consumer.replace_source_output(new)


def _vectors(model: ov.Model, mask: Any, pooling: Pooling | None, path: Path) -> Any:
    values = {output.get_any_name(): output.get_node().input_value(0) for output in model.outputs}
    if pooling is None and _SENTENCE in values:
        return values[_SENTENCE]
    for value in values.values():
        if value.get_partial_shape().rank.get_length() == 3:
            return pooled(value, mask, pooling or Pooling.CLS)
    if _SENTENCE in values:
        return values[_SENTENCE]
    raise ConfigurationError(f"{path} cannot be served: no output has a state for each token")


def _logits(
    model: ov.Model, mask: Any, vocabulary: Callable[[], Mapping[bytes, int]], path: Path
) -> tuple[Any, bool]:
    """Returns one or two logits of each pair, and whether pairs are joined to one text."""
    logits = model.output("logits").get_node().input_value(0)
    rank = logits.get_partial_shape().rank.get_length()
    if rank == 2:
        width = logits.get_partial_shape()[1]
        if not width.is_static or width.get_length() > len(ANSWERS):
            raise ConfigurationError(
                f"{path} cannot be served: it is a classifier of {width} classes, and a reranker "
                "has one or two"
            )
        return logits, False
    ids = [vocabulary().get(answer.encode()) for answer in ANSWERS] if rank == 3 else [None]
    if None in ids:
        raise ConfigurationError(
            f"{path} cannot be served as a reranker: it has logits of tokens, but none of "
            f"{' and '.join(ANSWERS)}"
        )
    return _answer_logits(logits, mask, np.array(ids, np.int64)), True


def _answer_logits(logits: Any, mask: Any, ids: Any) -> Any:
    """Returns the logits of two tokens behind the last: f32 [B, 2]. Those of all others are not
    computed."""
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
    """Computes what depends on constants alone."""
    converted = ops.convert(node, np.float32)
    compiled = ov.Core().compile_model(ov.Model([ops.result(converted)], [], "rows"), "CPU")
    return compiled([])[0].copy()


def _vocab_size(model: ov.Model) -> int | None:
    """Returns how many rows the table has that token ids are looked up in."""
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
