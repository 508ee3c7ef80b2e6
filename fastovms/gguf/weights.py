"""Makes constants of a graph from the tensors of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.errors import ConfigurationError
from fastovms.gguf.nodes import Node, constant
from fastovms.gguf.reader import GgufFile, TensorInfo
from fastovms.gguf.tensor_types import BF16, F16, NumberGroups, TensorType

_BLOCKS_AT_ONCE: Final = 2**15
"""The number of blocks that are unpacked at a time; it bounds the memory for unpacking."""

_FLOATS: Final = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}
_INTEGERS: Final = {
    (4, "int8"): ov.Type.i4,
    (4, "uint8"): ov.Type.u4,
    (8, "int8"): ov.Type.i8,
    (8, "uint8"): ov.Type.u8,
}
"""OpenVINO's integer types, by the number of bits and the dtype of `NumberGroups.integers`."""


Order = NDArray[np.int64]


class Weights:
    """The tensors of a file as nodes of a graph. Records which tensors have been used. In a trial,
    the shapes of matrices are checked, but their data is not read: their nodes are parameters.

    OpenVINO's CPU plugin computes with compressed weights if a graph has them as
    `(Convert(integers) - zero_points) * scales`. Scales and zero points are f32: the plugin
    converts them to f32 anyway, and f16 would round the scales of k-quants, which are products.
    """

    def __init__(self, file: GgufFile, *, is_trial: bool = False) -> None:
        self._file = file
        self._is_trial = is_trial
        self._used: set[str] = set()
        self._nodes: dict[str, Node] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def unused(self) -> list[str]:
        """Returns the names of tensors that were not used."""
        return sorted(self._file.tensors.keys() - self._used)

    def shape(self, name: str, num_axes: int = 2) -> tuple[int, ...]:
        """Returns the shape of a tensor with `num_axes` axes. Raises ConfigurationError if the
        tensor is missing or has another number of axes."""
        info = self._file.tensors.get(name)
        if info is None:
            raise ConfigurationError(f"the tensor {name} is missing")
        if len(info.shape) != num_axes:
            raise ConfigurationError(
                f"the tensor {name} must have {num_axes} dimensions, not {len(info.shape)}"
            )
        return info.shape

    def floats(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Returns the values of a small tensor: a norm, a bias or frequencies. Raises
        ConfigurationError if the tensor is missing, has another shape, or is quantized."""
        info = self._info(name, shape)
        if info.type.bits:
            raise ConfigurationError(
                f"the tensor {name} must have floating-point numbers, not {info.type.name}"
            )
        rows = self._file.read_rows(name)
        if info.type is BF16:
            values = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = rows.view(np.float16 if info.type is F16 else np.float32)
        return values.astype(np.float32).reshape(shape)

    def matrix(
        self,
        name: str,
        *shape: int,
        order: Order | None = None,
        columns: Order | None = None,
    ) -> Node:
        """Returns a node with the f32 values of a matrix, [rows, columns], or of all experts'
        matrices, [experts, rows, columns]. Repeated calls without an order return the same node.
        Raises ConfigurationError if the tensor is missing or has another shape.

        Args:
            order: the indices of the file's rows in the order to return; None = as in the file.
            columns: the indices of equal parts of the columns, likewise.
        """
        if order is None and name in self._nodes:
            return self._nodes[name]
        info = self._info(name, shape)
        if order is not None:
            shape = (*shape[:-2], len(order) // math.prod(shape[:-2]), shape[-1])
        if columns is not None and shape[-1] // len(columns) % info.type.group_size:
            raise ConfigurationError(
                f"the tensor {name} has groups of {info.type.group_size} numbers, which do not "
                f"divide heads of {shape[-1] // len(columns)}"
            )
        if self._is_trial:
            node = opset13.parameter(shape, np.float32)
        else:
            rows = self._file.read_rows(name)
            rows = rows if order is None else rows[order]
            node = _matrix(rows, shape, info.type, name, columns)
        if order is None:
            self._nodes[name] = node
        return node

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ConfigurationError(f"the tensor {name} is missing")
        if _without_ones(info.shape) != _without_ones(shape):
            raise ConfigurationError(
                f"the tensor {name} must have the shape {list(shape)}, not {list(info.shape)}"
            )
        self._used.add(name)
        return info


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape without leading axes of length 1, which llama.cpp does not write."""
    first = next((axis for axis, length in enumerate(shape) if length > 1), len(shape) - 1)
    return shape[first:]


def _matrix(
    rows: NDArray[np.uint8],
    shape: tuple[int, ...],
    kind: TensorType,
    name: str,
    columns: Order | None,
) -> Node:
    if kind.unpack is not None:
        return _compressed(rows, shape, kind, kind.unpack, name, columns)
    data = _reordered(np.ascontiguousarray(rows), columns)
    node = _constant(data, shape, _FLOATS[kind.name], name)
    return node if kind.name == "F32" else opset13.convert(node, "f32")


def _compressed(
    rows: NDArray[np.uint8],
    shape: tuple[int, ...],
    kind: TensorType,
    unpack: Callable[[NDArray[np.uint8]], NumberGroups],
    name: str,
    columns: Order | None,
) -> Node:
    """Returns a matrix as 4-bit or 8-bit integers, with one scale per group."""
    integers, scales, zero_points = [], [], []
    blocks = rows.reshape(-1, kind.block_bytes)
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        groups = unpack(np.ascontiguousarray(blocks[start : start + _BLOCKS_AT_ONCE]))
        integers.append(_packed(groups.integers, kind.bits))
        scales.append(groups.scales.reshape(-1))
        if groups.zero_points is not None:
            zero_points.append(groups.zero_points.reshape(-1))
    element_type = _INTEGERS[kind.bits, str(groups.integers.dtype)]
    size = groups.integers.shape[-1]
    one_each = (*shape[:-1], shape[-1] // size, 1)

    def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
        return _reordered(np.concatenate(parts).reshape(len(rows), -1), columns)

    values = _constant(joined(integers), (*one_each[:-1], size), element_type, name)
    node = opset13.convert(values, "f32")
    if zero_points:
        node = opset13.subtract(node, constant(joined(zero_points).reshape(one_each)))
    node = opset13.multiply(node, constant(joined(scales).reshape(one_each)))
    return opset13.reshape(node, constant(np.array(shape, np.int64)), False)


def _reordered(rows: NDArray[Any], columns: Order | None) -> NDArray[Any]:
    """Returns rows whose equal parts are in this order."""
    if columns is None:
        return rows
    return rows.reshape(len(rows), len(columns), -1)[:, columns].reshape(rows.shape)


def _packed(integers: NDArray[np.uint8] | NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Returns 8-bit integers unchanged, and 4-bit integers two per byte, the first in the lower
    half."""
    values = integers.reshape(-1).view(np.uint8)
    if bits == 8:
        return values
    pairs = values.view("<u2")
    return (pairs & np.uint16(0x0F) | pairs >> np.uint16(4) & np.uint16(0xF0)).astype(np.uint8)


def _constant(data: NDArray[Any], shape: tuple[int, ...], element_type: ov.Type, name: str) -> Node:
    node = ov.op.Constant(ov.Tensor(data, ov.Shape(shape), element_type), shared_memory=False)
    node.set_friendly_name(name)
    return node
