"""Runs whole steps of few tokens by a program of our kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import openvino as ov

from fastovms.engine.kernels.instructions import SEGMENT, Field, Opcode, StepField
from fastovms.engine.kernels.low_rank import PackedAdapters
from fastovms.engine.kernels.operation import Workspace
from fastovms.engine.kernels.whole_steps import WholeStep
from fastovms.engine.model.model import Feed, Floats, RawLogits
from fastovms.engine.model.step_inputs import StepInputs

_PARTIALS: Final = 1 << 16
"""Numbers by which the room for parts of the attention grows."""


class StepProgramRunner:
    """Runs steps of one model, of up to as many tokens as the workspace has rows. `before` computes
    the inputs of the program."""

    max_context_len: int | None = None

    max_long_chunk: int | None = 16
    """With AVX-512, a token of the text cost 0.59 of the time of OpenVINO's attention for a chunk
    of 5, and 1.06 for one of 16. Larger ones were measured with AVX2 alone."""

    def __init__(self, step: WholeStep, before: ov.CompiledModel, workspace: Workspace) -> None:
        self._step = step
        self._workspace = workspace
        self._instructions = step.program.instructions
        self._request = before.create_infer_request()
        self._feed = Feed(self._request, before.inputs)
        self._num_inputs = len(before.outputs)
        self._buffers = workspace.buffers_of(step.program)
        rows = workspace.max_rows
        self._logits = np.empty((rows, step.vocab_size), np.float32)
        self._buffers[step.logits, 0] = self._logits.ctypes.data
        self._states: Floats | None = None
        if step.states is not None:
            self._states = np.empty((rows, step.program.strides[step.states]), np.float32)
            self._buffers[step.states, 0] = self._states.ctypes.data
        self._num_tokens = 0
        self._begins = np.zeros(rows + 1, np.int32)
        self._past_lens = np.zeros(rows, np.int32)
        self._block_begins = np.zeros(rows + 1, np.int32)
        self._sampled = np.zeros(rows, np.int64)
        self._fields = np.zeros(StepField.CACHES + len(step.caches), np.int64)
        self._fields[StepField.SEQUENCE_BEGINS] = self._begins.ctypes.data
        self._fields[StepField.PAST_LENS] = self._past_lens.ctypes.data
        self._fields[StepField.BLOCK_BEGINS] = self._block_begins.ctypes.data
        self._fields[StepField.SAMPLED] = self._sampled.ctypes.data
        self._fields[StepField.ATTEND] = workspace.kernels.attend
        instructions = step.program.instructions
        attending = instructions[instructions[:, Field.OPCODE] == Opcode.ATTEND]
        sizes = attending[:, Field.HEADS] * (attending[:, Field.P2] + 2)
        self._partial_size = int(sizes.max(initial=0))
        self._partials = np.empty(0, np.float32)

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        """Sets the caches and tables of states."""
        for number, name in enumerate(self._step.caches):
            if name in tensors:
                self._fields[StepField.CACHES + number] = tensors[name].data.ctypes.data

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Returns logits; see `Model.infer`."""
        request, workspace, fields = self._request, self._workspace, self._fields
        kernels = workspace.kernels
        self._feed.set(inputs)
        request.start_async()
        request.wait()
        for index in range(self._num_inputs):
            rows = request.get_output_tensor(index).data
            self._buffers[index, 0] = kernels.address_of(rows.reshape(len(rows), -1))
        num_sequences, num_sampled = len(inputs.past_lens), len(inputs.sampled_token_indices)
        self._begins[: num_sequences + 1] = inputs.subsequence_begins
        self._past_lens[:num_sequences] = inputs.past_lens
        self._block_begins[: num_sequences + 1] = inputs.block_indices_begins
        self._sampled[:num_sampled] = inputs.sampled_token_indices
        fields[StepField.BLOCKS] = inputs.block_indices.ctypes.data
        for field, values in (
            (StepField.STATE_ROWS, inputs.state_rows),
            (StepField.STATE_ROW_BEGINS, inputs.state_row_begins),
            (StepField.STATE_INTERVALS, inputs.state_intervals),
        ):
            fields[field] = values.ctypes.data
        fields[StepField.NUM_SEQUENCES] = num_sequences
        fields[StepField.NUM_SAMPLED] = num_sampled
        num_segments = len(inputs.input_ids) * -(-int(inputs.max_context_len) // SEGMENT)
        if num_segments * self._partial_size > len(self._partials):
            size = num_segments * self._partial_size
            self._partials = np.empty(-(-size // _PARTIALS) * _PARTIALS, np.float32)
            fields[StepField.PARTIALS] = self._partials.ctypes.data
        workspace.prepare_thread()
        kernels.run(
            self._instructions,
            self._buffers,
            len(inputs.input_ids),
            workspace.scratch,
            kernels.product,
            fields,
            kernels.num_threads,
        )
        self._num_tokens = len(inputs.input_ids)
        return self._logits[:num_sampled]

    @property
    def hidden_states(self) -> Floats | None:
        """Returns the hidden states of the last step; see `Model.hidden_states`."""
        return None if self._states is None else self._states[: self._num_tokens]


class AdaptedStepRunner(StepProgramRunner):
    """Runs steps some of whose sequences have adapters.

    Args:
        step: multiplies low-rank matrices, too.
        adapters: returns those of the model, packed.
    """

    def __init__(
        self,
        step: WholeStep,
        before: ov.CompiledModel,
        workspace: Workspace,
        adapters: Callable[[], PackedAdapters],
    ) -> None:
        super().__init__(step, before, workspace)
        self._adapters = adapters
        self._known: tuple[int, ...] = ()
        self._max_modules = max(map(len, step.groups), default=0)
        self._entries = np.zeros(workspace.max_rows, np.int64)
        self._inner = np.zeros((workspace.max_rows, 0), np.float32)
        self._fields[StepField.LOW_RANK] = workspace.kernels.low_rank
        self._fields[StepField.ADAPTERS] = self._entries.ctypes.data

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Returns logits; see `Model.infer`."""
        adapters = self._adapters()
        if tuple(adapters) != self._known:
            self._use(adapters)
        addresses = [
            adapters[number].entries.ctypes.data if number else 0
            for number in inputs.adapters.tolist()
        ]
        num_rows = len(inputs.input_ids)
        self._entries[:num_rows] = np.repeat(addresses, np.diff(inputs.subsequence_begins))
        self._fields[StepField.NUM_PARTS] = -(-self._workspace.kernels.num_threads // num_rows)
        return super().infer(inputs)

    def _use(self, adapters: PackedAdapters) -> None:
        """Makes room for adapters, and leaves out what is to be computed for none of them. Nothing
        here keeps one of them in memory that is unloaded."""
        self._known = tuple(adapters)
        stride = max(one.max_rank for one in adapters.values())
        width = self._max_modules * stride
        self._inner = np.zeros((self._workspace.max_rows, width), np.float32)
        self._fields[StepField.INNER] = self._inner.ctypes.data
        self._fields[StepField.INNER_WIDTH], self._fields[StepField.INNER_STRIDE] = width, stride
        changed = np.any([one.entries[:, 3] > 0 for one in adapters.values()], axis=0)
        used = np.array([changed[list(group)].any() for group in self._step.groups])
        instructions = self._step.program.instructions
        opcodes = instructions[:, Field.OPCODE]
        is_low_rank = (opcodes == Opcode.LOW_RANK_DOWN) | (opcodes == Opcode.LOW_RANK_UP)
        groups = np.where(is_low_rank, instructions[:, Field.P2], 0)
        self._instructions = instructions[~is_low_rank | used[groups]]
