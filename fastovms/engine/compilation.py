"""In which precisions a model is compiled.

On a CPU that computes in bf16 by default (AMX), steps of many tokens are fastest so, but steps of
few are not: they are faster in f32 with 8-bit activations, which the bf16 kernels do without.
There the model is compiled twice, for large and for small steps, over one KV cache.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import openvino as ov

from fastovms.engine.paging import reason_of
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

KV_CACHE_PRECISIONS = ("f16", "u8")
"""In order of speed."""

SHARED_KV_CACHE_PRECISIONS = ("u8",)
"""Those whose layout is the same whatever the inference precision."""

EXACT_KV_CACHE_PRECISIONS = ("f32", "f16", "u8")

MAX_SMALL_STEP = 32
"""Tokens up to which a step counts as small. With a model of 135M parameters the two variants took
the same time at 32 to 48 tokens."""

_EXACT_WEIGHTS_SIZE = 32 * 1024 * 1024
_TWO_VARIANTS_SHARE = 0.5
_PRECISION = "INFERENCE_PRECISION_HINT"
_KV_PRECISION = "KV_CACHE_PRECISION"
_QUANTIZATION_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


class CompiledVariants(NamedTuple):
    """The model for large and for small steps; mostly the same one twice."""

    large: ov.CompiledModel
    small: ov.CompiledModel


def compile_variants(
    core: ov.Core,
    model: ov.Model,
    device: str,
    properties: Mapping[str, object],
    *,
    weights_size: int,
    available: int,
) -> CompiledVariants:
    """Compiles with the fastest precisions that the device takes; `properties` override them.

    Args:
        weights_size: of the model's file, in bytes. A model so small that its arithmetic costs
            nothing is compiled exactly: f32 throughout.
        available: free memory in bytes. Two variants hold the weights twice.

    Raises:
        ConfigurationError: the device refuses the model.
    """
    properties = {"PERFORMANCE_HINT": "LATENCY", **properties}
    if device != "CPU" or _PRECISION in properties:
        return _single(core, model, device, properties, KV_CACHE_PRECISIONS)
    if weights_size <= _EXACT_WEIGHTS_SIZE:
        exact = {_PRECISION: "f32", _QUANTIZATION_GROUP: "0", **properties}
        return _single(core, model, device, exact, EXACT_KV_CACHE_PRECISIONS)
    if core.get_property(device, _PRECISION) != ov.Type.bf16:
        return _single(core, model, device, properties, KV_CACHE_PRECISIONS)
    if 2 * weights_size > available * _TWO_VARIANTS_SHARE:
        logger.warning("not enough memory to compile the model for small steps too")
        return _single(core, model, device, properties, KV_CACHE_PRECISIONS)
    exact = {**properties, _PRECISION: "f32"}
    with ThreadPoolExecutor(1) as beside:  # compilation uses one core for most of its time
        future = beside.submit(
            _compile, core, model.clone(), device, exact, SHARED_KV_CACHE_PRECISIONS
        )
        large = _compile(core, model, device, properties, SHARED_KV_CACHE_PRECISIONS)
        small = future.result()
    if _cache_layout(large) != _cache_layout(small):
        logger.warning("large and small steps cannot share a KV cache of the given precision")
        return CompiledVariants(large, large)
    logger.info("steps of up to %d tokens are computed in f32, larger ones in bf16", MAX_SMALL_STEP)
    return CompiledVariants(large, small)


def _single(
    core: ov.Core,
    model: ov.Model,
    device: str,
    properties: Mapping[str, object],
    kv_cache_precisions: tuple[str, ...],
) -> CompiledVariants:
    compiled = _compile(core, model, device, properties, kv_cache_precisions)
    return CompiledVariants(compiled, compiled)


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
    refusals: list[str] = []
    for precision in kv_cache_precisions:
        try:
            compiled = core.compile_model(model, device, {**properties, _KV_PRECISION: precision})
        except (RuntimeError, TypeError) as error:
            refusals.append(reason_of(error))
            continue
        for refused, reason in zip(kv_cache_precisions, refusals, strict=False):
            logger.warning("%s refuses KV cache precision %s: %s", device, refused, reason)
        logger.info("KV cache precision %s on %s", precision, device)
        return compiled
    raise ConfigurationError(f"{device} cannot run the model: {refusals[0]}")
