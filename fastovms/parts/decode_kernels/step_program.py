"""Runs whole steps of few tokens as a program of decode kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import openvino as ov

from fastovms.engine.kernels.instructions import Field, Opcode, StepField
from fastovms.engine.kernels.low_rank import PackedAdapters
from fastovms.engine.kernels.operation import Workspace
from fastovms.engine.kernels.whole_steps import WholeStep
from fastovms.engine.model.model import Feed, Floats, RawLogits
from fastovms.engine.model.step_inputs import StepInputs

SEGMENT: Final = 256
"""The number of context tokens that one thread attends to at once in a step of few tokens."""

_MAX_ROWS_IN_SEGMENTS: Final = 32
"""The maximum number of tokens of a step whose attention is split into segments. Larger steps have
enough row tiles for all threads, and their partial results would need much memory."""

_WHOLE_TEXT: Final = 1 << 40

_MAX_LONG_CHUNK: Final = 16
"""See `Runner.max_long_chunk`. CPUs with VNNI may have OpenVINO compute attention in bf16. With
those without it, our attention of chunks is no slower."""

_TILE: Final = 8
"""The maximum number of rows that attend together in a step of few tokens."""

_QUERIES_TOGETHER: Final = 128
"""The queries that share a head of keys for which the rows of a longer step attend together, if
each thread has two such tiles: the cache is converted once for all of them."""

_PARTIALS: Final = 1 << 16
"""The memory for partial attention results grows in steps of this many numbers."""


class StepProgramRunner:
    """Runs the steps of one model, in parts of as many tokens as the workspace has rows. `before`
    is the compiled graph that computes the program's inputs."""

    max_context_len: int | None = None

    def __init__(self, step: WholeStep, before: ov.CompiledModel, workspace: Workspace) -> None:
        self._step = step
        self._workspace = workspace
        self._instructions = step.program.instructions
        self._request = before.create_infer_request()
        self._feed = Feed(self._request, before.inputs)
        self._num_inputs = len(before.outputs)
        self._buffers = workspace.buffers_of(step.program)
        self._logits = np.empty((0, step.vocab_size), np.float32)
        self._states: Floats | None = None
        if step.states is not None:
            self._states = np.empty((0, step.program.strides[step.states]), np.float32)
        has_vnni = "vnni" in workspace.kernels.instructions
        self.max_long_chunk = _MAX_LONG_CHUNK if has_vnni else None
        self._num_tokens = 0
        self._fields = np.zeros(StepField.CACHES + len(step.caches), np.int64)
        self._reserve(workspace.max_rows)
        self._fields[StepField.ATTEND] = workspace.kernels.attend
        self._fields[StepField.CHUNK_PRODUCT] = workspace.kernels.chunk_product
        instructions = step.program.instructions
        attending = instructions[instructions[:, Field.OPCODE] == Opcode.ATTEND]
        sizes = attending[:, Field.HEADS] * (attending[:, Field.P2] + 2)
        self._partial_size = int(sizes.max(initial=0))
        groups = attending[:, Field.HEADS] // attending[:, Field.P1]
        self._group = int(groups.max(initial=1))
        self._heads = int(attending[:, Field.P1].min(initial=1 << 20))
        self._partials = np.empty(0, np.float32)

    def _reserve(self, num_tokens: int) -> None:
        """Allocates per-step arrays for `num_tokens` sequences and sampled tokens."""
        self._begins = np.zeros(num_tokens + 1, np.int32)
        self._past_lens = np.zeros(num_tokens, np.int32)
        self._block_begins = np.zeros(num_tokens + 1, np.int32)
        self._sampled = np.zeros(num_tokens, np.int64)
        self._fields[StepField.SEQUENCE_BEGINS] = self._begins.ctypes.data
        self._fields[StepField.PAST_LENS] = self._past_lens.ctypes.data
        self._fields[StepField.BLOCK_BEGINS] = self._block_begins.ctypes.data
        self._fields[StepField.SAMPLED] = self._sampled.ctypes.data

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        """Sets the KV caches and the state tables."""
        for number, name in enumerate(self._step.caches):
            if name in tensors:
                self._fields[StepField.CACHES + number] = tensors[name].data.ctypes.data

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Returns logits; see `Model.infer`."""
        request, max_rows = self._request, self._workspace.max_rows
        self._feed.set(inputs)
        request.start_async()
        request.wait()
        num_tokens, num_sampled = len(inputs.input_ids), len(inputs.sampled_token_indices)
        self._make_room(num_tokens, num_sampled, int(inputs.max_context_len))
        address_of = self._workspace.kernels.address_of
        rows = [request.get_output_tensor(index).data for index in range(self._num_inputs)]
        for index, tensor in enumerate(rows):
            self._buffers[index, 0] = address_of(tensor.reshape(num_tokens, -1))
        self._workspace.prepare_thread()
        self._num_tokens = num_tokens
        if num_tokens <= max_rows:
            self._run(inputs)
            return self._logits[:num_sampled]
        # Each part appends the logits of its own tokens.
        order = np.argsort(inputs.sampled_token_indices, kind="stable")
        inputs = inputs._replace(sampled_token_indices=inputs.sampled_token_indices[order])
        for start in range(0, num_tokens, max_rows):
            self._run_part(inputs, start, min(start + max_rows, num_tokens))
        logits = self._logits[:num_sampled]
        is_sorted = np.array_equal(order, np.arange(num_sampled))
        return logits if is_sorted else logits[np.argsort(order)]

    def _make_room(self, num_tokens: int, num_sampled: int, max_context_len: int) -> None:
        """Allocates memory for the results of a step if the present memory is too small."""
        step, fields = self._step, self._fields
        address_of = self._workspace.kernels.address_of
        if num_tokens > len(self._past_lens):
            self._reserve(num_tokens)
        if num_sampled > len(self._logits):
            room = max(num_sampled, 2 * len(self._logits))
            self._logits = np.empty((room, step.vocab_size), np.float32)
        self._buffers[step.logits, 0] = address_of(self._logits)
        if step.states is not None:
            assert self._states is not None
            if num_tokens > len(self._states):
                self._states = np.empty((num_tokens, self._states.shape[1]), np.float32)
            self._buffers[step.states, 0] = address_of(self._states)
        num_rows, segment, tile = num_tokens, SEGMENT, _TILE
        if num_tokens > _MAX_ROWS_IN_SEGMENTS:
            num_rows, segment = min(num_tokens, self._workspace.max_rows), _WHOLE_TEXT
            most = num_rows * self._heads // (2 * self._workspace.kernels.num_threads)
            tile = max(_TILE, min(_QUERIES_TOGETHER // self._group, most))
        fields[StepField.SEGMENT], fields[StepField.TILE] = segment, tile
        size = num_rows * -(-max_context_len // segment) * self._partial_size
        if size > len(self._partials):
            self._partials = np.empty(-(-size // _PARTIALS) * _PARTIALS, np.float32)
            fields[StepField.PARTIALS] = self._partials.ctypes.data

    def _run_part(self, inputs: StepInputs, start: int, end: int) -> None:
        """Computes the step's tokens from `start` to before `end`; earlier tokens must be computed
        already."""
        begins = inputs.subsequence_begins
        is_inside = (start <= inputs.sampled_token_indices) & (inputs.sampled_token_indices < end)
        sampled = inputs.sampled_token_indices[is_inside]
        skipped = np.maximum(start - begins[:-1], 0).astype(np.int32)
        part = inputs._replace(
            input_ids=inputs.input_ids[start:end],
            past_lens=inputs.past_lens + skipped,
            subsequence_begins=np.clip(begins - start, 0, end - start),
            sampled_token_indices=sampled - start,
        )
        self._run(part)
        buffers, strides = self._buffers, self._step.program.strides
        buffers[self._step.logits, 0] += 4 * self._step.vocab_size * len(sampled)
        moved = list(range(self._num_inputs))
        if self._step.states is not None:
            moved.append(self._step.states)
        for index in moved:
            buffers[index, 0] += 4 * strides[index] * (end - start)

    def _run(self, inputs: StepInputs) -> None:
        workspace, fields = self._workspace, self._fields
        kernels = workspace.kernels
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
        kernels.run(
            self._instructions,
            self._buffers,
            len(inputs.input_ids),
            workspace.scratch,
            kernels.product,
            fields,
            kernels.num_threads,
        )

    @property
    def hidden_states(self) -> Floats | None:
        """Returns the hidden states of the last step; see `Model.hidden_states`."""
        return None if self._states is None else self._states[: self._num_tokens]


class AdaptedStepRunner(StepProgramRunner):
    """Runs steps in which some sequences have adapters.

    Args:
        step: a program that also multiplies low-rank matrices.
        adapters: returns the packed adapters of the model.
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
        """Allocates memory for the ranks of `adapters`, and drops instructions for modules that no
        adapter changes. Keeps no reference to an adapter, so that unloading frees its memory."""
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
