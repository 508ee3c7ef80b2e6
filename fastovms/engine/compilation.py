"""In which precisions a model is compiled.

On a CPU that computes in bf16 by default (AMX), prompts are fastest so, but decoding is not: a few
tokens a step are faster in f32 with 8-bit activations, which the bf16 kernels do without. There
the model is compiled twice, for prompt and for generated tokens, over one KV cache.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import openvino as ov

from fastovms.engine.paging import reason_of
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

KV_CACHE_PRECISIONS = ("f16", "u8")
"""In order of speed."""

SHARED_KV_CACHE_PRECISIONS = ("u8",)
"""Those whose layout is the same whatever the inference precision."""

_PRECISION = "INFERENCE_PRECISION_HINT"
_KV_PRECISION = "KV_CACHE_PRECISION"


class CompiledVariants(NamedTuple):
    """One model for prompt tokens and one for generated ones; mostly the same."""

    prompt: ov.CompiledModel
    decode: ov.CompiledModel


def compile_variants(
    core: ov.Core,
    model: ov.Model,
    device: str,
    properties: Mapping[str, object],
    *,
    has_room_for_two: bool,
) -> CompiledVariants:
    """Compiles with the fastest precisions that the device takes; `properties` override them.

    Args:
        has_room_for_two: whether the weights may be in memory twice.

    Raises:
        ConfigurationError: the device refuses the model.
    """
    properties = {"PERFORMANCE_HINT": "LATENCY", **properties}
    pays = _computes_in_bf16(core, device) and _PRECISION not in properties
    if pays and not has_room_for_two:
        logger.warning("not enough memory to compile the model for prompts and for decoding apart")
    if not (pays and has_room_for_two):
        compiled = _compile(core, model, device, properties, KV_CACHE_PRECISIONS)
        return CompiledVariants(compiled, compiled)
    prompt = _compile(core, model, device, properties, SHARED_KV_CACHE_PRECISIONS)
    decode = _compile(
        core, model, device, {**properties, _PRECISION: "f32"}, SHARED_KV_CACHE_PRECISIONS
    )
    if _cache_layout(prompt) != _cache_layout(decode):
        logger.warning("prompts and decoding cannot share a KV cache of the given precision")
        return CompiledVariants(prompt, prompt)
    logger.info("prompt tokens are computed in bf16, generated ones in f32")
    return CompiledVariants(prompt, decode)


def _computes_in_bf16(core: ov.Core, device: str) -> bool:
    return device == "CPU" and bool(core.get_property(device, _PRECISION) == ov.Type.bf16)


def _cache_layout(compiled: ov.CompiledModel) -> list[tuple[str, str]]:
    return [
        (str(port.get_partial_shape()), str(port.get_element_type())) for port in compiled.inputs
    ]


def _compile(
    core: ov.Core,
    model: ov.Model,
    device: str,
    properties: Mapping[str, object],
    kv_cache_precisions: tuple[str, ...],
) -> ov.CompiledModel:
    if _KV_PRECISION in properties:
        kv_cache_precisions = (str(properties[_KV_PRECISION]),)
    for precision in kv_cache_precisions:
        try:
            compiled = core.compile_model(model, device, {**properties, _KV_PRECISION: precision})
        except RuntimeError as error:
            reason = reason_of(error)
            logger.warning("%s refuses KV cache precision %s: %s", device, precision, reason)
        else:
            logger.info("KV cache precision %s on %s", precision, device)
            return compiled
    raise ConfigurationError(f"{device} cannot run the model: {reason}")
