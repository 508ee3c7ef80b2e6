"""Makes OpenVINO constants of a GGUF file's tensors, in as few bits as the file has them.

OpenVINO's CPU plugin computes with weights that stay compressed where a graph has them as
`(Convert(integers) - zero_points) * scales`. Scales and zero points are f32: the plugin makes f32
of them anyway, and f16 would round the products of which k-quants make their scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from fastovms.errors import ConfigurationError
from fastovms.gguf.file_reader import GgufFile, TensorInfo
from fastovms.gguf.tensor_types import BF16, F16, NumberGroups, TensorType

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

_BLOCKS_AT_ONCE: Final = 2**15
"""How many blocks are unpacked at a time, so that what is computed on the way stays small."""

_FLOATS: Final = {"F32": ov.Type.f32, "F16": ov.Type.f16, "BF16": ov.Type.bf16}
_INTEGERS: Final = {
    (4, "int8"): ov.Type.i4,
    (4, "uint8"): ov.Type.u4,
    (8, "int8"): ov.Type.i8,
    (8, "uint8"): ov.Type.u8,
}
"""OpenVINO's types of integers, by their bits and by the type that the groups hold."""


class Weights:
    """The tensors of a file as nodes of a graph. It knows which ones have been used."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._used: set[str] = set()
        self._nodes: dict[str, Node] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def unused(self) -> list[str]:
        """Returns the names of tensors that nobody has asked for."""
        return sorted(self._file.tensors.keys() - self._used)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a matrix.

        Raises:
            ConfigurationError: there is no such matrix.
        """
        info = self._file.tensors.get(name)
        if info is None or len(info.shape) != 2:
            raise ConfigurationError(f"the tensor {name} is missing or no matrix")
        return info.shape

    def floats(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Returns a small tensor's numbers: of a norm, a bias or frequencies.

        Raises:
            ConfigurationError: it is not there, of another shape, or quantized.
        """
        info = self._info(name, shape)
        if info.type.bits:
            raise ConfigurationError(f"{name} is of type {info.type.name}, not of floats")
        rows = self._file.read_rows(name)
        if info.type is BF16:
            values = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = rows.view(np.float16 if info.type is F16 else np.float32)
        return values.astype(np.float32).reshape(shape)

    def matrix(
        self, name: str, num_rows: int, num_columns: int, order: NDArray[np.int64] | None = None
    ) -> Node:
        """Returns a node with the f32 values of a matrix, [rows, columns]. The same one for the
        same name.

        Args:
            order: which row of the file comes first, second and so on.

        Raises:
            ConfigurationError: the tensor is not there or of another shape.
        """
        if name not in self._nodes:
            info = self._info(name, (num_rows, num_columns))
            rows = self._file.read_rows(name)
            rows = rows if order is None else rows[order]
            self._nodes[name] = _matrix(rows, info.shape, info.type, name)
        return self._nodes[name]

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ConfigurationError(f"the tensor {name} is missing")
        if info.shape != shape:
            raise ConfigurationError(
                f"the tensor {name} is of shape {list(info.shape)}, not of {list(shape)}"
            )
        self._used.add(name)
        return info


def constant(values: NDArray[Any]) -> Node:
    """Returns a constant with what numpy holds."""
    return opset13.constant(values)


def _matrix(rows: NDArray[np.uint8], shape: tuple[int, ...], kind: TensorType, name: str) -> Node:
    if kind.unpack is not None:
        return _compressed(rows, shape, kind, name)
    node = _constant(np.ascontiguousarray(rows), shape, _FLOATS[kind.name], name)
    return node if kind.name == "F32" else opset13.convert(node, "f32")


def _compressed(
    rows: NDArray[np.uint8], shape: tuple[int, ...], kind: TensorType, name: str
) -> Node:
    integers, scales, zero_points = [], [], []
    for groups in _unpacked(rows.reshape(-1, kind.block_bytes), kind):
        integers.append(_packed(groups.integers, kind.bits))
        scales.append(groups.scales.reshape(-1))
        if groups.zero_points is not None:
            zero_points.append(groups.zero_points.reshape(-1))
    element_type = _INTEGERS[kind.bits, str(groups.integers.dtype)]
    size = groups.integers.shape[-1]
    one_each = (shape[0], shape[1] // size, 1)
    values = _constant(np.concatenate(integers), (*one_each[:2], size), element_type, name)
    node = opset13.convert(values, "f32")
    if zero_points:
        node = opset13.subtract(node, constant(np.concatenate(zero_points).reshape(one_each)))
    node = opset13.multiply(node, constant(np.concatenate(scales).reshape(one_each)))
    return opset13.reshape(node, constant(np.array(shape, np.int64)), False)


def _unpacked(blocks: NDArray[np.uint8], kind: TensorType) -> Iterator[NumberGroups]:
    assert kind.unpack is not None
    for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
        yield kind.unpack(np.ascontiguousarray(blocks[start : start + _BLOCKS_AT_ONCE]))


def _packed(integers: NDArray[np.uint8] | NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Returns integers of 8 bits as they are, and those of 4 bits two in a byte, the first one in
    its lower half."""
    values = integers.reshape(-1).view(np.uint8)
    if bits == 8:
        return values
    return (values[0::2] & np.uint8(0x0F)) | (values[1::2] << np.uint8(4))


def _constant(data: NDArray[Any], shape: tuple[int, ...], element_type: ov.Type, name: str) -> Node:
    node = ov.op.Constant(ov.Tensor(data, ov.Shape(shape), element_type), shared_memory=False)
    node.set_friendly_name(name)
    return node
