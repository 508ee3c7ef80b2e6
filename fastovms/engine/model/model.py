"""Runs a compiled paged-attention model over its KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.batch_invariance import without_single_rows
from fastovms.engine.model.compilation import (
    CompiledVariants,
    Precisions,
    compile_first,
    possible_precisions,
)
from fastovms.engine.model.devices import device_memory, find_device, is_gpu
from fastovms.engine.model.kv_cache import BlockCopy, HostCache, KvCache, RemoteCache, cache_inputs
from fastovms.engine.model.paging import (
    DEFAULT_MAX_MODEL_LEN,
    SAMPLED_TOKEN_INDICES,
    PagedGraph,
    is_cache,
    read_paged_graph,
)
from fastovms.engine.model.raw_logits import RawLogits
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.model.weight_groups import activation_group_size


class Model(Protocol):
    """What the engine, and who reserves its cache, need of a model."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether its cache takes a GPU's memory, not the host's."""

    @property
    def block_size(self) -> int: ...

    @property
    def bytes_per_block(self) -> int: ...

    @property
    def rope_switch_len(self) -> int | None:
        """Tokens beyond which a sequence is rotated otherwise, and all of it has to be computed
        anew; None = there is no such length."""

    def available_memory(self) -> int:
        """Returns the free bytes where the cache will lie."""

    def allocate_cache(self, num_blocks: int) -> None: ...

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory of the cache; see `KvCache.commit_ahead`."""

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None: ...

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Computes one step and returns logits [R, vocab_size], valid until the next call. The
        caller may change them."""


class PagedModel:
    """The model on its device. Not thread-safe: one step at a time.

    Attributes:
        vocab_size: width of the logits, or None where the model leaves it open.
        graph: what it was compiled of.
        rope_switch_len: see `Model`.
        is_on_gpu: whether its cache takes a GPU's memory, not the host's.
    """

    def __init__(
        self,
        variants: CompiledVariants,
        *,
        device: str,
        precisions: Precisions,
        graph: PagedGraph,
    ) -> None:
        self.graph = graph
        self.rope_switch_len = graph.rope_switch_len
        self.is_on_gpu = is_gpu(device)
        self._device = device
        self._precisions = precisions
        self._large = _StepRunner(variants.large, is_on_gpu=self.is_on_gpu)
        self._small = self._large
        if variants.small is not variants.large:
            self._small = _StepRunner(variants.small, is_on_gpu=self.is_on_gpu)
        self._compiled = variants.large
        self._cache_inputs = cache_inputs(variants.large)
        self._cache: KvCache = HostCache([], 0)
        self._spare_block = 0
        values = [c for c in self._cache_inputs if c.name.startswith("value_cache")]
        self.block_size = values[0].block_shape[1]
        self.bytes_per_block = sum(c.bytes_per_block for c in self._cache_inputs)
        width = variants.large.output("logits").get_partial_shape()[-1]
        self.vocab_size: int | None = width.get_length() if width.is_static else None

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        exact: bool = False,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
    ) -> PagedModel:
        """Reads and compiles a model directory; see `ExportedModel`.

        Raises:
            ConfigurationError: the model cannot be paged, or the device cannot run it.
        """
        files = ExportedModel(
            model_dir,
            device=device,
            properties=properties,
            exact=exact,
            max_model_len=max_model_len,
        )
        return files.compile(files.choices)[1]

    def available_memory(self) -> int:
        """Returns the free bytes where the cache will lie."""
        return device_memory(ov.Core(), self._device)

    def allocate_cache(self, num_blocks: int) -> None:
        """Reserves the KV tensors."""
        self._spare_block = num_blocks
        num_blocks += self._precisions.is_batch_invariant
        if self.is_on_gpu:
            context = self._compiled.get_context()
            self._cache = RemoteCache(self._cache_inputs, num_blocks, context)
        else:
            self._cache = HostCache(self._cache_inputs, num_blocks)
        for request in {self._large, self._small}:
            for name, tensor in self._cache.tensors.items():
                request.set_tensor(name, tensor)

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory of the cache; see `KvCache.commit_ahead`."""
        return self._cache.commit_ahead(num_used_blocks)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            self._cache.copy_block(source, target)

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Computes one step; see `Model.infer`. It releases the GIL while the device computes."""
        num_rows = len(inputs.sampled_token_indices)
        if self._precisions.is_batch_invariant:
            inputs = without_single_rows(
                inputs, block_size=self.block_size, spare_block=self._spare_block
            )
        request = self._small if self._precisions.is_small(inputs) else self._large
        return request.infer(inputs)[:num_rows]


class ExportedModel:
    """A model directory that has been read and may be compiled in several ways.

    Attributes:
        model_dir: where it lies.
        max_model_len: tokens that texts may come to.
        graph: what was made of it.
        device: OpenVINO's name of the device.
        choices: the ways worth trying, the presumably fastest first.
        weights_size: the size of their file, in bytes.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        exact: bool = False,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
    ) -> None:
        """
        Args:
            properties: OpenVINO's, which override what would be chosen.
            exact: whether to compute in f32 throughout and, on the CPU, each token as if it were
                alone.

        Raises:
            ConfigurationError: the model cannot be paged, or there is no such device.
        """
        self._core = ov.Core()
        self.model_dir = model_dir
        self.max_model_len = max_model_len
        self.device = find_device(self._core, device)
        self.graph = read_paged_graph(self._core, model_dir, max_model_len)
        self.weights_size = (model_dir / "openvino_model.bin").stat().st_size
        self.choices = possible_precisions(
            self._core,
            self.device,
            properties or {},
            exact=exact,
            weights_size=self.weights_size,
            group_size=activation_group_size(self.graph.model),
            available=self.available_memory(),
        )

    def available_memory(self) -> int:
        return device_memory(self._core, self.device)

    def compile(self, choices: Sequence[Precisions]) -> tuple[Precisions, PagedModel]:
        """Compiles in the first way that the device takes, and returns the model with the way it
        was.

        Raises:
            ConfigurationError: the device takes none.
        """
        precisions, variants = compile_first(self._core, self.graph.model, self.device, choices)
        model = PagedModel(variants, device=self.device, precisions=precisions, graph=self.graph)
        return precisions, model


class _StepRunner:
    """An infer request of OpenVINO, fed with `StepInputs`.

    A tensor whose shape is as it was is written into, not set again: to set one takes OpenVINO 20
    us in a running server, and a step has eight. To ask where the logits are takes 60 us, so on the
    host OpenVINO is told where to put them.
    """

    def __init__(self, compiled: ov.CompiledModel, *, is_on_gpu: bool) -> None:
        self._request = compiled.create_infer_request()
        self.set_tensor = self._request.set_tensor
        self._ports = {port.get_any_name(): port for port in compiled.inputs if not is_cache(port)}
        self._arrays: dict[str, NDArray[np.int32] | NDArray[np.int64]] = {}
        self._output = compiled.output(0)
        is_bf16 = self._output.get_element_type() == ov.Type.bf16
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if is_bf16 else np.float32)
        self._samples_in_graph = SAMPLED_TOKEN_INDICES in self._ports
        width = self._output.get_partial_shape()[-1]
        self._has_room = self._samples_in_graph and width.is_static and not is_on_gpu
        self._room: RawLogits = np.empty((0, 0), np.float32)

    def infer(self, inputs: StepInputs) -> RawLogits:
        request = self._request
        for name, port in self._ports.items():
            array = getattr(inputs, name)
            held = self._arrays.get(name)
            if held is not None and held.shape == array.shape:
                held[...] = array
            else:
                self._arrays[name] = held = array.copy()
                request.set_tensor(port, ov.Tensor(held, shared_memory=True))
        num_rows = len(inputs.sampled_token_indices)
        if self._has_room and num_rows > len(self._room):
            self._make_room(num_rows)
        request.start_async()
        request.wait()
        if self._has_room and num_rows > 0:
            return self._room[:num_rows]
        output: RawLogits = request.get_output_tensor(0).data.view(self._dtype)
        logits = output.reshape(-1, output.shape[-1])
        return logits if self._samples_in_graph else logits[inputs.sampled_token_indices]

    def _make_room(self, num_rows: int) -> None:
        """Makes room for so many rows of logits, or for twice as many as there was room for: a
        tensor may be shrunk and grown again, up to what it was at first."""
        num_rows = max(num_rows, 2 * len(self._room))
        shape = [num_rows, 1, self._output.get_partial_shape()[-1].get_length()]
        room = np.empty(shape, self._dtype)
        tensor = ov.Tensor(room, ov.Shape(shape), self._output.get_element_type())
        self._request.set_tensor(self._output, tensor)
        self._room = room[:, 0]
