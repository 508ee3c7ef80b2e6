"""A compiled paged-attention model with its KV cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.compilation import MAX_SMALL_STEP, CompiledVariants, compile_variants
from fastovms.engine.inputs import StepInputs
from fastovms.engine.memory import available_memory
from fastovms.engine.paging import SAMPLED_TOKEN_INDICES, is_cache, read_paged_model
from fastovms.engine.scheduler import BlockCopy


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
    """The model on its device. Not thread-safe: one step at a time.

    Attributes:
        vocab_size: width of the logits, or None where the model leaves it open.
    """

    def __init__(self, variants: CompiledVariants) -> None:
        self._large = _Request(variants.large)
        self._small = self._large
        if variants.small is not variants.large:
            self._small = _Request(variants.small)
        self._cache_inputs = [
            _CacheInput.of(port) for port in variants.large.inputs if is_cache(port)
        ]
        self._cache: list[NDArray[np.uint8]] = []
        values = [c for c in self._cache_inputs if c.name.startswith("value_cache")]
        self.block_size = values[0].block_shape[1]
        self.bytes_per_block = sum(c.bytes_per_block for c in self._cache_inputs)
        width = variants.large.output("logits").get_partial_shape()[-1]
        self.vocab_size: int | None = width.get_length() if width.is_static else None

    @classmethod
    def load(
        cls, model_dir: Path, *, device: str = "CPU", properties: Mapping[str, object] | None = None
    ) -> PagedModel:
        """Reads and compiles a model directory.

        Raises:
            ConfigurationError: the model or the device cannot do it.
        """
        core = ov.Core()
        model = read_paged_model(core, model_dir)
        variants = compile_variants(
            core,
            model,
            device,
            properties or {},
            weights_size=(model_dir / "openvino_model.bin").stat().st_size,
            available=available_memory(),
        )
        return cls(variants)

    def allocate_cache(self, num_blocks: int) -> None:
        """Reserves the KV tensors. The kernel commits their memory when it is first written."""
        self._cache = []
        for cache_input in self._cache_inputs:
            memory = np.empty((num_blocks, cache_input.bytes_per_block), np.uint8)
            shape = ov.Shape([num_blocks, *cache_input.block_shape])
            for request in {self._large, self._small}:
                tensor = ov.Tensor(memory, shape, cache_input.element_type)
                request.set_tensor(cache_input.name, tensor)
            self._cache.append(memory)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            for memory in self._cache:
                memory[target] = memory[source]

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        """See `Model.infer`. Releases the GIL while the device computes."""
        is_small = len(inputs.input_ids) <= MAX_SMALL_STEP
        return (self._small if is_small else self._large).infer(inputs)


class _Request:
    """An infer request fed with `StepInputs`."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self.set_tensor = self._request.set_tensor
        self._names = [
            name
            for port in compiled.inputs
            if not is_cache(port)
            for name in (port.get_any_name(),)
        ]
        self._samples_in_graph = SAMPLED_TOKEN_INDICES in self._names

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        request = self._request
        for name in self._names:
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
