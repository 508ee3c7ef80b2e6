"""A stateful OpenVINO language model turned into a paged-attention one, with its KV cache."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from fastovms.engine.inputs import StepInputs
from fastovms.engine.scheduler import BlockCopy
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

KV_CACHE_PRECISIONS = ("f16", "u8")
"""In order of speed. On CPUs with native bf16 the plugin stores bf16 when f16 is asked for."""

_STEP_INPUTS = frozenset(f.name for f in dataclasses.fields(StepInputs))
_SAMPLED_TOKEN_INDICES = "sampled_token_indices"
_ELEMENTWISE = frozenset({"Add", "Convert", "Divide", "Multiply", "Subtract", "Tanh"})


class Model(Protocol):
    """What the engine needs of a model."""

    @property
    def block_size(self) -> int: ...

    @property
    def bytes_per_block(self) -> int: ...

    def allocate_cache(self, num_blocks: int) -> None: ...

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None: ...

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Computes one step and returns logits [R, vocab_size], valid until the next call."""


class PagedModel:
    """The model on its device. Not thread-safe: one step at a time."""

    def __init__(self, compiled: ov.CompiledModel, *, samples_in_graph: bool) -> None:
        self._request = compiled.create_infer_request()
        self._samples_in_graph = samples_in_graph
        self._cache_inputs: list[_CacheInput] = [
            _CacheInput.of(port) for port in compiled.inputs if _is_cache(port)
        ]
        self._cache: list[NDArray[np.uint8]] = []
        values = [c for c in self._cache_inputs if c.name.startswith("value_cache")]
        self.block_size = values[0].block_shape[1]
        self.bytes_per_block = sum(c.bytes_per_block for c in self._cache_inputs)

    @classmethod
    def load(
        cls, model_dir: Path, *, device: str = "CPU", properties: Mapping[str, object] | None = None
    ) -> PagedModel:
        """Reads `openvino_model.xml` and compiles it, with the fastest KV precision the device
        takes unless `properties` names one.

        Raises:
            ConfigurationError: the model is broken, has no attention state to page, needs inputs
                that the engine has not got, or the device refuses it.
        """
        core = ov.Core()
        try:
            model = core.read_model(model_dir / "openvino_model.xml")
            samples_in_graph = _to_paged(model)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot read the model in {model_dir}: {_last_line(error)}"
            ) from error
        unknown = sorted(
            name
            for port in model.inputs
            if not _is_cache(port) and (name := port.get_any_name()) not in _STEP_INPUTS
        )
        if unknown:
            raise ConfigurationError(
                f"the model in {model_dir} needs inputs that paged attention does not provide: "
                + ", ".join(unknown)
            )
        if not any(map(_is_cache, model.inputs)):
            raise ConfigurationError(f"the model in {model_dir} keeps no attention state to page")
        compiled = _compile(core, model, device, dict(properties or {}))
        return cls(compiled, samples_in_graph=samples_in_graph)

    def allocate_cache(self, num_blocks: int) -> None:
        """Reserves the KV tensors. The kernel commits their memory when it is first written."""
        self._cache = []
        for cache_input in self._cache_inputs:
            memory = np.empty((num_blocks, cache_input.bytes_per_block), np.uint8)
            shape = ov.Shape([num_blocks, *cache_input.block_shape])
            self._request.set_tensor(
                cache_input.name, ov.Tensor(memory, shape, cache_input.element_type)
            )
            self._cache.append(memory)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            for memory in self._cache:
                memory[target] = memory[source]

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        """See `Model.infer`. Releases the GIL while the device computes."""
        request = self._request
        for name in _STEP_INPUTS:
            if name != _SAMPLED_TOKEN_INDICES or self._samples_in_graph:
                request.set_tensor(name, ov.Tensor(getattr(inputs, name), shared_memory=True))
        request.start_async()
        request.wait()
        output: NDArray[np.float32] = request.get_output_tensor(0).data
        logits = output.reshape(-1, output.shape[-1])
        return logits if self._samples_in_graph else logits[inputs.sampled_token_indices]


@dataclasses.dataclass(frozen=True, slots=True)
class _CacheInput:
    """One layer's key or value cache. `block_shape` is (kv heads, rows, columns): its shape and
    type are the plugin's choice, known only after compilation (quantised ones hold their scales
    in extra rows or columns)."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]

    @classmethod
    def of(cls, port: Any) -> _CacheInput:
        shape = tuple(d.get_length() for d in list(port.get_partial_shape())[1:])
        return cls(port.get_any_name(), port.get_element_type(), shape)

    @property
    def bytes_per_block(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.bitwidth) // 8


def _is_cache(port: Any) -> bool:
    return str(port.get_any_name()).startswith(("key_cache.", "value_cache."))


def _to_paged(model: ov.Model) -> bool:
    """Rewrites the model in place. True: it projects only `sampled_token_indices` to the
    vocabulary; False: it has no place to put that, and yields the logits of every token."""
    paged_attention_transformation(
        model,
        use_block_indices_inputs=False,
        use_score_outputs=False,
        allow_score_aggregation=False,
        allow_cache_rotation=False,
        allow_xattention=False,
        allow_adaptive_rkv=False,
        allow_qq_bias=False,
    )
    projection = _vocabulary_projection(model)
    if projection is None:
        logger.warning("no vocabulary projection found: every prompt token will pay for its logits")
        return False
    indices = opset13.parameter([-1], ov.Type.i64, name=_SAMPLED_TOKEN_INDICES)
    indices.output(0).set_names({_SAMPLED_TOKEN_INDICES})
    hidden = opset13.gather(projection.input_value(0), indices, opset13.constant(0, dtype=np.int64))
    projection.input(0).replace_source_output(hidden.output(0))
    model.add_parameters([indices])
    model.validate_nodes_and_infer_types()
    return True


def _vocabulary_projection(model: ov.Model) -> Any | None:
    """The last MatMul, which only elementwise operations (bias, scale, soft cap) may follow."""
    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() in _ELEMENTWISE:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "MatMul" else None


def _compile(
    core: ov.Core, model: ov.Model, device: str, properties: dict[str, object]
) -> ov.CompiledModel:
    properties.setdefault("PERFORMANCE_HINT", "LATENCY")
    if "KV_CACHE_PRECISION" in properties:
        precisions = [str(properties["KV_CACHE_PRECISION"])]
    else:
        precisions = list(KV_CACHE_PRECISIONS)
    for precision in precisions:
        try:
            compiled = core.compile_model(
                model, device, {**properties, "KV_CACHE_PRECISION": precision}
            )
        except RuntimeError as error:
            reason = _last_line(error)
            logger.warning("%s refuses KV cache precision %s: %s", device, precision, reason)
        else:
            logger.info("KV cache precision %s on %s", precision, device)
            return compiled
    raise ConfigurationError(f"{device} cannot run the model: {reason}")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
