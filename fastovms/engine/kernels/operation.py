"""Custom OpenVINO operations that run programs inside OpenVINO's graph."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
import openvino as ov

from fastovms.engine.kernels.assembler import Program, WeightStore, assemble
from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.segments import Port, find_segments, port_of

_NO_STEP: Final = np.zeros(1, np.int64)

_FEWEST_COLUMNS: Final = 16
"""The minimum group size in columns."""


class Workspace:
    """Scratch memory for the programs of one model, of which one runs at a time."""

    def __init__(self, kernels: Kernels, max_rows: int) -> None:
        self.kernels = kernels
        self.max_rows = max_rows
        self._threads: set[int] = set()
        self._integers = np.zeros(0, np.int16)
        self._sums = np.zeros(0, np.int32)
        self._scales = np.zeros(0, np.float32)
        self._rows = np.zeros(0, np.float32)
        self._agreement = np.zeros(5 * 8, np.int64)
        self.scratch = np.zeros(4, np.int64)

    def reserve(self, programs: Sequence[Program]) -> None:
        """Allocates memory that is large enough for each of these programs."""
        columns = self.max_rows * max(program.max_columns for program in programs)
        self._integers = np.zeros(columns, np.int16)
        self._sums = np.zeros(columns // _FEWEST_COLUMNS, np.int32)
        self._scales = np.zeros(columns // _FEWEST_COLUMNS, np.float32)
        width = max(program.offsets()[1] for program in programs)
        self._rows = np.zeros(self.max_rows * width, np.float32)
        addresses = (a.ctypes.data for a in (self._integers, self._sums, self._scales))
        agreement = self._agreement.ctypes.data
        self.scratch[:] = [*addresses, agreement + -agreement % 64]

    def buffers_of(self, program: Program) -> Any:
        """Returns the buffers of a program, int64 [buffers, 2]; only its own buffers have
        addresses."""
        buffers = np.zeros((len(program.strides), 2), np.int64)
        buffers[:, 1] = program.strides
        for index, offset in program.offsets()[0].items():
            buffers[index, 0] = self._rows.ctypes.data + 4 * self.max_rows * offset
        return buffers

    def prepare_thread(self) -> None:
        """Sets the number of compute threads for programs started by the calling thread."""
        thread = threading.get_ident()
        if thread not in self._threads:
            numba.set_num_threads(self.kernels.num_threads)
            numba.set_parallel_chunksize(1)
            self._threads.add(thread)


class ProgramOperation(ov.Op):  # type: ignore[misc]
    """An OpenVINO operation that runs a program.

    Args:
        family: a list to which this operation and its clones are appended. OpenVINO never frees
            operations written in Python, so the list's owner calls `release` on them.
    """

    def __init__(
        self,
        workspace: Workspace,
        program: Program,
        family: list[ProgramOperation],
        inputs: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(self)
        self._workspace = workspace
        self.program = program
        self._family = family
        self._buffers = workspace.buffers_of(program)
        family.append(self)
        if inputs is not None:
            self.set_arguments(list(inputs))
            self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        """Sets the shapes of the outputs: the first input's shape with another width."""
        shape = self.get_input_partial_shape(0)
        self.set_output_size(self.program.num_outputs)
        for index, width in enumerate(self.program.output_widths):
            others = [shape[axis] for axis in range(len(shape) - 1)]
            self.set_output_type(index, ov.Type.f32, ov.PartialShape([*others, width]))

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> ProgramOperation:
        """Returns a new operation for the same program."""
        return ProgramOperation(self._workspace, self.program, self._family, new_inputs)

    def release(self) -> None:
        """Drops the references to the weights and to the input nodes. The operation must not be
        used afterwards."""
        self.set_arguments([])
        del self._workspace, self.program, self._family, self._buffers

    def has_evaluate(self) -> bool:
        """Returns True: OpenVINO can compute this operation."""
        return True

    def evaluate(self, outputs: Sequence[ov.Tensor], inputs: Sequence[ov.Tensor]) -> bool:
        """Computes the outputs of a step."""
        workspace, buffers = self._workspace, self._buffers
        first = inputs[0].data
        num_rows = first.size // first.shape[-1]
        address_of = workspace.kernels.address_of
        for index, tensor in enumerate((*inputs, *outputs)):
            buffers[index, 0] = address_of(tensor.data)
        workspace.prepare_thread()
        kernels = workspace.kernels
        kernels.run(
            self.program.instructions,
            buffers,
            num_rows,
            workspace.scratch,
            kernels.product,
            _NO_STEP,
            kernels.num_threads,
        )
        return True


@dataclass(frozen=True, slots=True)
class RewrittenModel:
    """Owner of the custom operations of a rewritten model. The model can be used while this object
    is alive.

    Attributes:
        operations: the operations of the model, and their clones in compiled models.
    """

    model: ov.Model
    operations: list[ProgramOperation]

    def __del__(self) -> None:
        for operation in self.operations:
            operation.release()


def use_kernels(model: ov.Model, store: WeightStore, *, max_rows: int) -> RewrittenModel | None:
    """Rewrites a paged model in place, for steps of up to `max_rows` tokens. Returns None, and
    leaves the model unchanged, if the kernels can compute no part of it."""
    kernels = store.kernels
    segments = find_segments(model, kernels.instructions)
    if not segments:
        return None
    programs = [assemble(segment, store) for segment in segments]
    workspace = Workspace(kernels, max_rows)
    workspace.reserve(programs)
    operations: list[ProgramOperation] = []
    replaced: dict[Port, Any] = {}
    for segment, program in zip(segments, programs, strict=True):
        inputs = [replaced.get(port_of(port), port) for port in segment.inputs]
        operation = ProgramOperation(workspace, program, operations, inputs)
        inner = {step.id for step in segment.steps}.union(*(s.inner for s in segment.steps))
        for index, port in enumerate(segment.outputs):
            replaced[port_of(port)] = operation.output(index)
            for target in port.get_target_inputs():
                if target.get_node().get_instance_id() not in inner:
                    target.replace_source_output(operation.output(index))
    model.validate_nodes_and_infer_types()
    return RewrittenModel(model, operations)
