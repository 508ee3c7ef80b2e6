"""Names what a graph has that paged attention cannot run, in words for who exported the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import openvino as ov

_EXPORT: Final = "optimum-cli export openvino --task text-generation-with-past"

_ENCODER: Final = "it is an encoder, such as an embedding model, which generates no text"

_ATTENTION: Final = "ScaledDotProductAttention"

_EMBEDDINGS: Final = frozenset({"last_hidden_state", "sentence_embedding", "token_embeddings"})
"""Outputs of an embedding model."""

_Names = frozenset[str]

_FOREIGN: Final[tuple[tuple[Callable[[_Names], bool], str], ...]] = (
    (
        lambda names: "inputs_embeds" in names,
        "it takes embeddings in place of tokens, as the language part of a vision model does",
    ),
    (
        lambda names: bool(names & {"decoder_input_ids", "encoder_hidden_states"}),
        "it is part of an encoder-decoder model, which generates in another way",
    ),
    (
        lambda names: bool(names & {"pixel_values", "input_features", "input_values"}),
        "it takes images or sound in place of tokens",
    ),
    (
        lambda names: "token_type_ids" in names and "beam_idx" not in names,
        _ENCODER,
    ),
    (
        lambda names: any(name.startswith("past") for name in names),
        f"it was exported without state; export it again with {_EXPORT}",
    ),
    (lambda names: "input_ids" not in names, "it has no input named input_ids"),
)
"""What a model is that has such inputs, by their names."""


def why_not_paged(model: ov.Model) -> str | None:
    """Returns what keeps a model from being paged, as it was exported, or None."""
    names = _names(model.inputs)
    for is_foreign, reason in _FOREIGN:
        if is_foreign(names):
            return reason
    outputs = _names(model.outputs)
    if outputs & _EMBEDDINGS:
        return _ENCODER
    if "logits" not in outputs:
        return "it has no output named logits, so it does not generate text"
    if not model.get_sinks():
        return f"it was exported without state; export it again with {_EXPORT}"
    if not has_attention(model):
        if "Softmax" in _operations(model):
            return f"no attention of it was exported as OpenVINO's operation {_ATTENTION}"
        return "it has no attention, as recurrent models have none"
    return None


def has_attention(model: ov.Model) -> bool:
    """Returns whether a model has attention that either backend could page."""
    return _ATTENTION in _operations(model)


def _operations(model: ov.Model) -> set[str]:
    return {node.get_type_name() for node in model.get_ordered_ops()}


def why_not_wholly_paged(model: ov.Model) -> str | None:
    """Returns what is left of a model's own state after the transformation, which should have
    replaced all of it, or None."""
    states = sorted(sink.get_variable_id() for sink in model.get_sinks())
    if not states:
        return None
    shown = ", ".join(states[:3]) + (", ..." if len(states) > 3 else "")
    return (
        "it is a recurrent or hybrid model, and OpenVINO makes no tables of that part of its state "
        f"which is not attention's ({shown})"
    )


def _names(ports: list[ov.Output]) -> _Names:
    return frozenset(name for port in ports for name in port.get_names())
