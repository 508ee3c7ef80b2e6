"""Translates segments of a graph into programs for `programs.run_program`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.instructions import NUM_FIELDS, Field, Opcode
from fastovms.engine.kernels.matrices import PackedMatrix, Room, pack, packed_size
from fastovms.engine.kernels.segments import Port, Segment, Step, Weights, port_of

PART_SIZE: Final = 256 * 1024
"""Bytes of weights in a chunk of work for one thread, if there are enough weights for all threads.
The first block of a chunk is never prefetched: with 128 KiB, steps of 8 tokens took 1.07 times as
long."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a tensor: its buffer, and its position in the buffer's rows. A row holds the
    values of one token.

    Attributes:
        heads: the number of heads in a row.
        stride: the distance from one head to the next, in f32 values.
        width: the number of values in a head; 0 = unknown.
    """

    buffer: int
    start: int = 0
    heads: int = 1
    stride: int = 0
    width: int = 0


class WeightStore:
    """The packed weights of a model, shared by all of its programs.

    Args:
        room_for: returns memory for the packed weights of the products with these names, of this
            size in bytes; None = anonymous memory.

    Attributes:
        experts: the weights of mixture-of-experts layers by product name. A step reads only the
            chosen experts' weights.
    """

    def __init__(
        self,
        kernels: Kernels,
        room_for: Callable[[tuple[str, ...], int], Room] | None = None,
    ) -> None:
        self.kernels = kernels
        self._room_for = room_for
        self._matrices: dict[tuple[str, ...], PackedMatrix] = {}
        self.experts: dict[str, PackedMatrix] = {}

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All packed matrices."""
        return list(self._matrices.values())

    @property
    def num_bytes(self) -> int:
        """The size of all packed weights in bytes."""
        return sum(matrix.data.nbytes for matrix in self.matrices)

    def matrix(self, products: Sequence[Step]) -> PackedMatrix:
        """Returns the weights of these products, stacked in one matrix. Packs them at the first
        call."""
        key = tuple(step.node.get_friendly_name() for step in products)
        if key not in self._matrices:
            stacked = [_weights(step) for step in products]
            compressed = [weights.compressed for weights in stacked]
            room_for = None if self._room_for is None else partial(self._room_for, key)
            self._matrices[key] = pack(compressed, stacked[0].kind, self.kernels, room_for)
            if products[0].opcode == Opcode.EXPERTS:
                self.experts[key[0]] = self._matrices[key]
        return self._matrices[key]


@dataclass(frozen=True, slots=True)
class Program:
    """The arguments of `programs.run_program`.

    Attributes:
        instructions: int64 [instructions, NUM_FIELDS].
        strides: the number of f32 values per row of each buffer: first the inputs, then the
            outputs, then the program's own buffers.
        num_inputs, num_outputs: the number of input and output buffers.
        output_widths: the number of values in a row of each output.
        max_columns: the largest number of quantized integers in a row.
        constants: the arrays whose addresses are in `instructions`; this keeps them alive.
    """

    instructions: NDArray[np.int64]
    strides: tuple[int, ...]
    num_inputs: int
    num_outputs: int
    output_widths: tuple[int, ...]
    max_columns: int
    constants: tuple[object, ...]

    def offsets(self) -> tuple[dict[int, int], int]:
        """Returns the offset of each of the program's own buffers in a row of shared scratch
        memory, and the length of that row, both in f32 values. Buffers that are not in use at the
        same time overlap."""
        first_own = self.num_inputs + self.num_outputs
        last_uses: dict[int, int] = {}
        for number, row in enumerate(self.instructions.tolist()):
            for name in (Field.A, Field.B, Field.C, Field.OUT):
                last_uses[row[name]] = number
        free: dict[int, list[int]] = {}
        found: dict[int, int] = {}
        size = 0
        for number, row in enumerate(self.instructions.tolist()):
            target = row[Field.OUT]
            if target >= first_own and target not in found:
                width = self.strides[target]
                places = free.setdefault(width, [])
                if not places:
                    places.append(size)
                    size += width
                found[target] = places.pop()
            for used in {row[name] for name in (Field.A, Field.B, Field.C, Field.OUT)}:
                if used in found and last_uses[used] == number:
                    free[self.strides[used]].append(found[used])
        return found, size


def packed_bytes(segment: Segment) -> int:
    """Returns the size of a segment's packed weights in bytes."""
    found = (step.weights for step in segment.steps if step.weights is not None)
    return sum(packed_size(weights.compressed, weights.kind) for weights in found)


def assemble(segment: Segment, store: WeightStore) -> Program:
    """Returns the program that computes a segment."""
    assembler = Assembler(segment, store)
    for step in segment.steps:
        assembler.add(step)
    return assembler.finish()


class Assembler:
    """Builds a program step by step: `add` each step in order, then call `finish`."""

    def __init__(self, segment: Segment, store: WeightStore) -> None:
        self._segment = segment
        self._store = store
        self._rows: list[list[int]] = []
        self._constants: list[object] = []
        self._places = {port_of(port): Place(i) for i, port in enumerate(segment.inputs)}
        num_inputs = len(segment.inputs)
        self._outputs = {port_of(port): num_inputs + i for i, port in enumerate(segment.outputs)}
        borders = [*segment.inputs, *segment.outputs]
        self._strides = [port.get_partial_shape()[-1].get_length() for port in borders]
        self._quantized: tuple[Place, int, int, int, int] | None = None
        self._max_columns = 0

    def add(self, step: Step) -> None:
        """Adds the instructions of a step. Its sources must have been added before."""
        port = (step.id, 0)
        if step.opcode is None:
            self._split(step)
        elif step.opcode == Opcode.PRODUCT:
            if port not in self._places:
                self._multiply(self._products_with(step))
        else:
            self._apply(step, step.opcode)

    def finish(self) -> Program:
        """Returns the program of all steps that were added."""
        segment = self._segment
        num_borders = len(segment.inputs)
        widths = self._strides[num_borders : num_borders + len(segment.outputs)]
        return Program(
            np.array(self._rows, np.int64).reshape(-1, NUM_FIELDS),
            tuple(self._strides),
            len(segment.inputs),
            len(segment.outputs),
            tuple(widths),
            self._max_columns,
            tuple(self._constants),
        )

    def _split(self, step: Step) -> None:
        """Records where the outputs of a split are: each is a slice of every row of its input."""
        place = self._places[port_of(step.sources[0])]
        start = place.start
        for index, width in enumerate(step.widths):
            self._places[step.id, index] = Place(place.buffer, start)
            start += width

    def _apply(self, step: Step, opcode: Opcode) -> None:
        sources = [self._places[port_of(source)] for source in step.sources]
        first, second = sources[0], sources[-1]
        target = self._target((step.id, 0), step.widths[0])
        p0 = p1 = 0
        constant = step.constant
        if opcode == Opcode.NORMALIZE:
            constant = np.ones(step.widths[0], np.float32)
            p1 = int(np.float32(step.epsilon).view(np.int32))
        if constant is not None:
            self._constants.append(constant)
            p0 = constant.ctypes.data
        self._emit(opcode, first, second, target, step.widths[0], p0, p1)

    def _products_with(self, step: Step) -> list[Step]:
        """Returns the products that can be computed together with this one: same input rows, same
        weight format, and no other step of the segment needs a result earlier."""
        products = [other for other in self._segment.steps if self._goes_with(other, step)]
        return products if len(products) > 1 and step in products else [step]

    def _goes_with(self, other: Step, step: Step) -> bool:
        if other.opcode != Opcode.PRODUCT or port_of(other.sources[0]) != port_of(step.sources[0]):
            return False
        mine, theirs = _weights(step), _weights(other)
        shapes = [weights.compressed.scales.shape[1] for weights in (mine, theirs)]
        return (
            mine.kind == theirs.kind
            and shapes[0] == shapes[1]
            and other.widths[0] % theirs.kind.num_lanes == 0
            and (other.id, 0) not in self._outputs
        )

    def _multiply(self, products: Sequence[Step]) -> None:
        matrix = self._store.matrix(products)
        source = self._places[port_of(products[0].sources[0])]
        kind = matrix.kind
        form = (matrix.columns, kind.activation_bits, 0, int(kind.has_chunk_form))
        if self._quantized != (source, *form):
            self._emit(Opcode.QUANTIZE, source, source, source, matrix.num_columns, *form)
            self._quantized = source, *form
            self._max_columns = max(self._max_columns, matrix.num_columns)
        width = matrix.num_blocks * matrix.kind.num_lanes
        if len(products) == 1 and width == matrix.num_rows:
            target = self._target((products[0].id, 0), width)
        else:
            target = self._own_buffer(width)
        num_groups = matrix.num_columns // matrix.columns
        num_parts = max(self._store.kernels.num_threads, matrix.data.nbytes // PART_SIZE)
        self._emit(
            Opcode.PRODUCT,
            source,
            source,
            target,
            width,
            matrix.data.ctypes.data,
            matrix.num_blocks,
            num_groups,
            matrix.columns // matrix.kind.columns_of_unit,
            matrix.kind.weight_bits,
            matrix.kind.form,
            min(num_parts, matrix.num_blocks),
            int(kind.has_chunk_form),
        )
        self._constants.append(matrix)
        start = target.start
        for step in products:
            port = (step.id, 0)
            place = Place(target.buffer, start)
            start += step.widths[0]
            if port in self._outputs and port not in self._places:
                output = self._target(port, step.widths[0])
                self._emit(Opcode.COPY, place, place, output, step.widths[0])
            else:
                self._places[port] = place

    def _target(self, port: Port, width: int) -> Place:
        """Returns the place for a result: an output buffer, or a new buffer of the program."""
        place = Place(self._outputs[port]) if port in self._outputs else self._own_buffer(width)
        self._places[port] = place
        return place

    def _own_buffer(self, width: int) -> Place:
        self._strides.append(width)
        return Place(len(self._strides) - 1)

    def _emit(
        self, opcode: Opcode, a: Place, b: Place, out: Place, width: int, *parameters: int
    ) -> None:
        row = [opcode, a.buffer, a.start, b.buffer, b.start, out.buffer, out.start, width]
        assert len(row) == Field.P0
        row += [*parameters, *[0] * (NUM_FIELDS - Field.P0 - len(parameters))]
        if not row[Field.HEADS]:
            row[Field.HEADS] = 1
        self._rows.append(list(map(int, row)))


def _weights(step: Step) -> Weights:
    assert step.weights is not None, "only products are asked"
    return step.weights
