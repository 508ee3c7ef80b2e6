"""Random weight matrices in the forms in which exported models hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""

INT4_GROUP_SIZE = 32
"""Columns that share a scale. Real exports have 64 or 128, which tiny models cannot be divided
into."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """`(values - zero_point) * scale`, asymmetric and unsigned as NNCF makes them.

    Attributes:
        values: u8 [rows, groups, columns of a group], 0 to `2**bits - 1`.
        zero_point: u8 [rows, groups, 1].
        scale: f16 [rows, groups, 1].
        bits: 8, with one group, or 4.
    """

    values: NDArray[np.uint8]
    zero_point: NDArray[np.uint8]
    scale: NDArray[np.float16]
    bits: int

    @classmethod
    def random(
        cls, rng: np.random.Generator, rows: int, columns: int, std: float, bits: int = 8
    ) -> QuantizedMatrix:
        """Uniform entries of mean about 0 and standard deviation about `std`."""
        groups = 1 if bits == 8 else columns // INT4_GROUP_SIZE
        levels = 2**bits
        low, high = (120, 136) if bits == 8 else (7, 8)
        values = rng.integers(0, levels, (rows, groups, columns // groups), dtype=np.uint8)
        zero_point = rng.integers(low, high + 1, (rows, groups, 1), dtype=np.uint8)
        scale = std * np.sqrt(12) / levels * rng.uniform(0.9, 1.1, (rows, groups, 1))
        return cls(values, zero_point, scale.astype(np.float16), bits)

    def clear_rows(self, rows: slice) -> None:
        """Makes `rows` zero, in place."""
        self.values[rows] = self.zero_point[rows]

    def dense(self) -> NDArray[np.float32]:
        """The numbers that it stands for: [rows, columns]."""
        shifted = self.values.astype(np.float32) - self.zero_point
        dense: NDArray[np.float32] = (shifted * self.scale).reshape(len(self.values), -1)
        return dense

    def node(self, name: str) -> Node:
        """The f32 weights as the subgraph NNCF writes, which plugins fold into its consumer."""
        values = _convert(self._constant(self.values, name))
        zero_point = _convert(self._constant(self.zero_point, f"{name}/zero_point"))
        scale = self.scale if self.bits == 4 else self.scale[:, 0]
        scaled = ops.multiply(
            ops.subtract(values, zero_point), ops.constant(scale, name=f"{name}/scale")
        )
        if self.bits == 4:
            shape = np.array([len(self.values), -1], np.int64)
            scaled = ops.reshape(scaled, ops.constant(shape), False)
        return ops.convert(scaled, "f32")

    def _constant(self, values: NDArray[np.uint8], name: str) -> Node:
        if self.bits == 8:
            return ops.constant(values[:, 0], shared_memory=True, name=name)
        pairs = np.resize(values.reshape(-1), (values.size + 1) // 2 * 2).reshape(-1, 2)
        packed = pairs[:, 0] | pairs[:, 1] << 4
        tensor = ov.Tensor(packed, values.shape, ov.Type.u4)
        return ops.constant(tensor, shared_memory=False, name=name)


def _convert(node: Node) -> Node:
    return ops.convert(node, "f16")


class WeightFormat:
    """Turns matrices into nodes of one of the formats of `Shape.weight_format`."""

    def __init__(self, name: str) -> None:
        self.bits = 4 if name == "int4" else 8
        self._is_dense = name in ("fp16", "fp32")
        self.compress_to_fp16 = name == "fp16"
        """For `ov.save_model`: what makes fp16 constants of the fp32 ones."""

    def node(self, matrix: QuantizedMatrix, name: str) -> Node:
        return ops.constant(matrix.dense(), name=name) if self._is_dense else matrix.node(name)
