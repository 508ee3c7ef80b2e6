"""A `Model` that forwards to another one. Subclasses override parts of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from fastovms.engine.model.kv_cache import BlockCopy, BlockRows
from fastovms.engine.model.model import Floats, Model, RawLogits
from fastovms.engine.model.step_inputs import StepInputs


class ModelWrapper:
    """Implements `Model`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.is_on_gpu = model.is_on_gpu
        self.block_size = model.block_size
        self.bytes_per_block = model.bytes_per_block
        self.rope_switch_len = model.rope_switch_len
        self.states = model.states

    def available_memory(self) -> int:
        return self._model.available_memory()

    def allocate_cache(self, num_blocks: int) -> None:
        self._model.allocate_cache(num_blocks)

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return self._model.commit_ahead(num_used_blocks)

    def forget_files(self) -> None:
        self._model.forget_files()

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        self._model.copy_blocks(copies)

    def block_rows(self, block_id: int) -> BlockRows:
        return self._model.block_rows(block_id)

    def accept_drafts(self, block_table: array[int], first: int, end: int) -> None:
        self._model.accept_drafts(block_table, first, end)

    def infer(self, inputs: StepInputs) -> RawLogits:
        return self._model.infer(inputs)

    @property
    def hidden_states(self) -> Floats | None:
        return self._model.hidden_states
