"""Runs whole steps of few tokens by a program of our kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import openvino as ov

from fastovms.engine.kernels.operation import Workspace
from fastovms.engine.kernels.programs import StepField
from fastovms.engine.kernels.whole_steps import WholeStep
from fastovms.engine.model.model import Feed, Floats, RawLogits
from fastovms.engine.model.step_inputs import StepInputs

MAX_CONTEXT: Final = 2048
"""The longest text, in tokens, that our attention is for."""


class StepProgramRunner:
    """Runs steps of one model, of up to as many tokens as the workspace has rows.

    Args:
        before: computes the inputs of the program.
    """

    max_context_len: int | None = MAX_CONTEXT

    def __init__(self, step: WholeStep, before: ov.CompiledModel, workspace: Workspace) -> None:
        self._step = step
        self._workspace = workspace
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
        self._fields = np.zeros(StepField.CACHES + 2 * step.num_layers, np.int64)
        self._fields[StepField.SEQUENCE_BEGINS] = self._begins.ctypes.data
        self._fields[StepField.PAST_LENS] = self._past_lens.ctypes.data
        self._fields[StepField.BLOCK_BEGINS] = self._block_begins.ctypes.data
        self._fields[StepField.SAMPLED] = self._sampled.ctypes.data

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        """Sets the caches."""
        for name, tensor in tensors.items():
            kind, _, layer = name.partition(".")
            at = StepField.CACHES + 2 * int(layer) + (kind == "value_cache")
            self._fields[at] = tensor.data.ctypes.data

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
        fields[StepField.NUM_SEQUENCES] = num_sequences
        fields[StepField.NUM_SAMPLED] = num_sampled
        workspace.prepare_thread()
        kernels.run(
            self._step.program.instructions,
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
