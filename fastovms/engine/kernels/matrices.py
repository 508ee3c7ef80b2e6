"""Reads compressed weights from a graph, and packs them in the kernels' format."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.kernels.compiler import Kernels
from fastovms.engine.kernels.products import E2M1, MIDDLE, ProductKind

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_BITS: Final = {ov.Type.i4: 4, ov.Type.u4: 4, ov.Type.i8: 8, ov.Type.u8: 8}
_SIGNED: Final = frozenset({ov.Type.i4, ov.Type.i8})

_MAX_GROUP: Final = {16: 256, 8: 128}
"""The maximum group size in columns, by the bits of activations, such that sums fit in 32 bits."""

_FLIPS: Final = {4: 0x88, 6: 0x20, 8: 0x80}
"""The XOR mask that makes the signed integers in a byte unsigned, by the bits of an integer."""

_NO_PLACE: Final = 255
_PLACES: Final = np.full(256, _NO_PLACE, np.uint8)
_PLACES[np.array(E2M1)] = np.arange(len(E2M1))
"""Of signed integers of 8 bits in `E2M1`."""

_SCANNED: Final = 256 * 1024
"""The number of integers whose minimum and maximum are computed at once, so that they stay in a
core's cache."""

_LARGEST_F16: Final = 65504.0


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """A quantized matrix: `(integers - zero_points) * scales`.

    Attributes:
        integers: uint8, row by row. Two 4-bit integers share a byte, the first in its low half.
        bits: 4 or 8.
        is_signed: whether the integers are in two's complement.
        scales: f32 [rows, groups].
        zero_points: f32 [rows, groups]; None = all are 0.
        num_rows, num_columns: the shape of the matrix.
    """

    integers: NDArray[np.uint8]
    bits: int
    is_signed: bool
    scales: NDArray[np.float32]
    zero_points: NDArray[np.float32] | None
    num_rows: int
    num_columns: int


def decompressed(weights: CompressedWeights, start: int, end: int) -> NDArray[np.float32]:
    """Returns the rows `start` to `end` - 1 of the matrix, f32 [rows, columns]."""
    columns = weights.num_columns
    integers: NDArray[Any]
    if weights.bits == 4:
        pairs = weights.integers[start * columns // 2 : end * columns // 2]
        integers = np.stack([pairs & 15, pairs >> 4], -1).reshape(-1).view(np.int8)
        if weights.is_signed:
            integers = (integers ^ 8) - 8
    else:
        integers = weights.integers[start * columns : end * columns]
        integers = integers.view(np.int8) if weights.is_signed else integers
    groups = integers.reshape(end - start, weights.scales.shape[1], -1).astype(np.float32)
    if weights.zero_points is not None:
        groups -= weights.zero_points[start:end, :, None]
    groups *= weights.scales[start:end, :, None]
    return groups.reshape(end - start, columns)


def read_weights(node: Node, num_axes: int = 2) -> CompressedWeights | None:
    """Returns the weights that a node decompresses, or None if their format is not supported. With
    `num_axes` = 3, the matrices are stacked along the rows."""
    scales = zero_points = None
    if node.get_output_partial_shape(0).is_dynamic or len(node.get_output_shape(0)) != num_axes:
        return None
    num_rows, num_columns = math.prod(node.get_output_shape(0)[:-1]), node.get_output_shape(0)[-1]
    while node.get_type_name() != "Constant":
        kind = node.get_type_name()
        if kind == "Multiply" and scales is None:
            scales = _floats(node.input_value(1).get_node())
            if scales is None:
                return None
        elif kind == "Subtract" and scales is not None and zero_points is None:
            zero_points = _floats(node.input_value(1).get_node())
            if zero_points is None:
                return None
        elif kind not in ("Convert", "Reshape"):
            return None
        node = node.input_value(0).get_node()
    bits = _BITS.get(node.get_element_type())
    if bits is None or scales is None:
        return None
    shape = _joined(node.get_output_shape(0), num_axes)
    num_groups = shape[1] if len(shape) == 3 else 1
    if shape not in ([num_rows, num_columns], [num_rows, num_groups, num_columns // num_groups]):
        return None
    groups = (num_rows, num_groups)
    try:
        scales = scales.reshape(_joined(scales.shape, num_axes))
        scales = np.broadcast_to(_by_groups(scales, len(shape)), groups)
        if zero_points is not None:
            zero_points = zero_points.reshape(_joined(zero_points.shape, num_axes))
            zero_points = np.broadcast_to(_by_groups(zero_points, len(shape)), groups)
    except ValueError:
        return None
    is_signed = node.get_element_type() in _SIGNED
    integers = node.data.reshape(-1).view(np.uint8)
    return CompressedWeights(integers, bits, is_signed, scales, zero_points, num_rows, num_columns)


def _joined(shape: Sequence[int], num_axes: int) -> list[int]:
    """Returns a shape in which stacked matrices are merged along their rows."""
    first = num_axes - 1
    return [math.prod(shape[:first]), *shape[first:]] if len(shape) > first else list(shape)


def _floats(node: Node) -> NDArray[np.float32] | None:
    """Returns the values of a constant, also behind a conversion; None = not a constant."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant":
        return None
    shape = list(node.get_output_shape(0))
    data = node.data
    if node.get_element_type() in (ov.Type.u4, ov.Type.i4):
        packed = data.reshape(-1).view(np.uint8)
        values = np.stack([packed & 15, packed >> 4], -1).reshape(-1)[: int(np.prod(shape))]
        if node.get_element_type() == ov.Type.i4:
            values = (values.astype(np.int8) + 8) % 16 - 8
        return values.astype(np.float32).reshape(shape)
    if data.dtype.kind not in "fiu":
        return None
    found: NDArray[np.float32] = data.astype(np.float32)
    return found


def _by_groups(values: NDArray[np.float32], rank: int) -> NDArray[np.float32]:
    """Returns [rows, groups] from [rows, groups, 1], [rows, 1] or a single value. Raises ValueError
    for another shape."""
    if values.size == 1:
        return values.reshape(1, 1)
    if values.ndim != rank or values.shape[-1] != 1:
        raise ValueError
    return values[..., 0] if rank == 3 else values


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in the kernels' format.

    Attributes:
        data: uint8, the packed weights.
        kind: the variant of the kernel that multiplies them.
        num_rows, num_columns: the shape of the matrix.
        columns: the group size: columns that share a scale, of weights and of activations.
    """

    data: NDArray[np.uint8]
    kind: ProductKind
    num_rows: int
    num_columns: int
    columns: int

    @property
    def num_blocks(self) -> int:
        return -(-self.num_rows // self.kind.num_lanes)


def group_columns(weights: CompressedWeights, kind: ProductKind) -> int | None:
    """Returns the group size of the packed weights in columns, or None if they cannot be packed."""
    size = weights.num_columns // weights.scales.shape[1]
    largest, unit = _MAX_GROUP[kind.activation_bits], kind.columns_of_unit
    fitting = (columns for columns in range(largest, 0, -unit) if size % columns == 0)
    return next(fitting, None)


def packed_kind(weights: CompressedWeights, instructions: str) -> ProductKind | None:
    """Returns the kernel variant for these weights, or None if they are not supported. 8-bit
    integers are packed in 4 or 6 bits if all of them fit, as those of GGUF's MXFP4, and of Q6_K and
    Q5 types do."""
    kind = ProductKind(instructions, weights.bits, has_zero_points=False)
    if group_columns(weights, kind) is None:
        return None
    e2m1 = replace(kind, weight_bits=4, is_e2m1=True)
    if weights.bits == 8 and group_columns(weights, e2m1) is not None and _are_e2m1(weights):
        kind = e2m1
    elif weights.bits == 8 and _fit_six_bits(weights):
        kind = replace(kind, weight_bits=6)
    limit = np.abs(weights.scales).max(initial=0.0)
    with_zero_points = replace(kind, has_zero_points=True)
    zero_points = _stored_zero_points(weights, with_zero_points)
    if zero_points is not None:
        kind, limit = with_zero_points, max(limit, np.abs(zero_points).max(initial=0.0))
    return kind if limit <= _LARGEST_F16 else None


def _fit_six_bits(weights: CompressedWeights) -> bool:
    """Returns whether all 8-bit integers fit in 6 bits."""
    middle = MIDDLE[6]
    lowest, highest = (-middle, middle - 1) if weights.is_signed else (0, 2 * middle - 1)
    integers = weights.integers.view(np.int8) if weights.is_signed else weights.integers
    parts = (integers[start : start + _SCANNED] for start in range(0, len(integers), _SCANNED))
    return all(lowest <= part.min() and part.max() <= highest for part in parts)


def _are_e2m1(weights: CompressedWeights) -> bool:
    """Returns whether integers of 8 bits are all in `E2M1`, without zero points."""
    integers = weights.integers
    parts = (integers[start : start + _SCANNED] for start in range(0, len(integers), _SCANNED))
    is_known = weights.is_signed and weights.zero_points is None
    return is_known and all((_PLACES[part] != _NO_PLACE).all() for part in parts)


def _stored_zero_points(
    weights: CompressedWeights, kind: ProductKind
) -> NDArray[np.float32] | None:
    """Returns the zero points to store with the integers, or None if all are the middle of the
    range."""
    middle = kind.middle
    zero_points = weights.zero_points
    if zero_points is None:
        zero_points = np.zeros((1, 1), np.float32)
    centered = zero_points if weights.is_signed else zero_points - middle
    if not centered.any():
        return None
    stored: NDArray[np.float32] = centered + middle if kind.is_unsigned else centered
    return np.broadcast_to(stored, weights.scales.shape)


def packed_size(weights: CompressedWeights, kind: ProductKind) -> int:
    """Returns the size of the packed weights in bytes."""
    columns = group_columns(weights, kind)
    assert columns is not None, "see packed_kind"
    num_blocks = -(-weights.num_rows // kind.num_lanes)
    return num_blocks * kind.block_size(weights.num_columns // columns, columns)


class Room(NamedTuple):
    """Page-aligned memory for packed weights.

    Attributes:
        data: uint8.
        is_filled: whether it already has the packed weights; if not, all bytes are 0.
    """

    data: NDArray[np.uint8]
    is_filled: bool


def pack(
    stacked: Sequence[CompressedWeights],
    kind: ProductKind,
    kernels: Kernels,
    room_for: Callable[[int], Room] | None = None,
) -> PackedMatrix:
    """Packs matrices, stacked along their rows, for the kernel variant `kind`. All must have the
    same number of columns and groups, and all but the last must fill whole blocks. `room_for`
    returns memory of a size in bytes; None = anonymous memory."""
    columns = group_columns(stacked[0], kind)
    assert columns is not None, "see packed_kind"
    sizes = [packed_size(weights, kind) for weights in stacked]
    data, is_filled = (room_for or _anonymous)(sum(sizes))
    if not is_filled:
        for weights, part in zip(stacked, np.split(data, np.cumsum(sizes)[:-1]), strict=True):
            _pack_into(part, weights, columns, kind, kernels)
    num_rows = sum(weights.num_rows for weights in stacked)
    return PackedMatrix(data, kind, num_rows, stacked[0].num_columns, columns)


def _pack_into(
    data: NDArray[np.uint8],
    weights: CompressedWeights,
    columns: int,
    kind: ProductKind,
    kernels: Kernels,
) -> None:
    lanes = kind.num_lanes
    num_groups = weights.num_columns // columns
    num_blocks = -(-weights.num_rows // lanes)
    flip = _FLIPS[kind.weight_bits] if kind.is_unsigned == weights.is_signed else 0
    integers = np.ascontiguousarray(weights.integers)
    if kind.is_e2m1:
        places, flip = _PLACES[integers], 0
        integers = places[::2] | places[1::2] << np.uint8(4)
    kernels.pack(
        integers,
        weights.num_rows,
        weights.num_columns,
        columns,
        kind.weight_bits,
        kind.activation_bits,
        lanes,
        flip,
        kind.header_size,
        data,
    )
    groups = data.reshape(num_blocks, num_groups, kind.group_size(columns))
    heads = groups[:, :, : kind.header_size].view(np.float16)
    heads[:, :, :lanes] = _by_lanes(weights.scales, num_groups, lanes)
    if kind.has_zero_points:
        zero_points = _stored_zero_points(weights, kind)
        assert zero_points is not None
        heads[:, :, lanes:] = _by_lanes(zero_points, num_groups, lanes)


def _by_lanes(values: NDArray[np.float32], num_groups: int, lanes: int) -> NDArray[np.float32]:
    """Rearranges [rows, groups] to [blocks, groups, lanes]."""
    repeated = np.repeat(values, num_groups // values.shape[1], 1)
    padded = np.zeros((-(-len(values) // lanes) * lanes, num_groups), np.float32)
    padded[: len(values)] = repeated
    return padded.reshape(-1, lanes, num_groups).transpose(0, 2, 1)


def _anonymous(size: int) -> Room:
    page = 4096
    room = np.zeros(size + page, np.uint8)
    start = -room.ctypes.data % page
    return Room(room[start : start + size], is_filled=False)
