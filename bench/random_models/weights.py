"""Random weight matrices in the forms in which exported models hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

Node = Any
"""An `openvino.Node`; the package's annotations are too loose for strict checking."""


class Quantization(NamedTuple):
    """How a matrix is quantized.

    Attributes:
        bits: 8 or 4.
        group_size: how many columns share a scale; None = a whole row.
        is_symmetric: whether there are no zero points.
    """

    bits: int = 8
    group_size: int | None = None
    is_symmetric: bool = False


INT8 = Quantization()
QUANTIZATIONS = {
    "int8": INT8,
    # Real exports have groups of 64 or 128, which tiny models cannot be divided into.
    "int4": Quantization(4, 32),
    "int4-asym-128": Quantization(4, 128),
    "int4-sym-128": Quantization(4, 128, True),
    "int4-sym-64": Quantization(4, 64, True),
    "int4-sym-channel": Quantization(4, None, True),
}
DENSE_FORMATS = ("fp16", "fp32")
WEIGHT_FORMATS = (*QUANTIZATIONS, *DENSE_FORMATS)


@dataclass(frozen=True)
class QuantizedMatrix:
    """`(values - zero_point) * scale`, as NNCF makes them: asymmetric and unsigned, or symmetric
    and signed, which is the same with a zero point in the middle that nobody writes.

    Attributes:
        values: u8 [rows, groups, columns of a group], 0 to `2**bits - 1`.
        zero_point: u8 [rows, groups, 1].
        scale: f16 [rows, groups, 1].
    """

    values: NDArray[np.uint8]
    zero_point: NDArray[np.uint8]
    scale: NDArray[np.float16]
    quantization: Quantization

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        rows: int,
        columns: int,
        std: float,
        quantization: Quantization = INT8,
    ) -> QuantizedMatrix:
        """Uniform entries of mean about 0 and standard deviation about `std`."""
        bits, group_size, is_symmetric = quantization
        groups = 1 if group_size is None else columns // group_size
        levels = 2**bits
        low, high = (120, 136) if bits == 8 else (7, 8)
        if is_symmetric:
            low = high = levels // 2
        values = rng.integers(0, levels, (rows, groups, columns // groups), dtype=np.uint8)
        zero_point = rng.integers(low, high + 1, (rows, groups, 1), dtype=np.uint8)
        scale = std * np.sqrt(12) / levels * rng.uniform(0.9, 1.1, (rows, groups, 1))
        return cls(values, zero_point, scale.astype(np.float16), quantization)

    def clear_rows(self, rows: NDArray[np.int64] | slice) -> None:
        """Makes `rows` zero, in place."""
        self.values[rows] = self.zero_point[rows]

    def dense(self) -> NDArray[np.float32]:
        """The numbers that it stands for: [rows, columns]."""
        shifted = self.values.astype(np.float32) - self.zero_point
        dense: NDArray[np.float32] = (shifted * self.scale).reshape(len(self.values), -1)
        return dense

    def node(self, name: str, num_matrices: int = 0) -> Node:
        """The f32 weights as the subgraph NNCF writes, which plugins fold into its consumer. With
        `num_matrices`, the rows are those of several: [matrices, rows, columns]."""
        is_grouped = self.quantization.group_size is not None
        first = [num_matrices, -1] if num_matrices else [-1]

        def shaped(values: NDArray[Any]) -> NDArray[Any]:
            parts = values if is_grouped else values[:, 0]
            return parts.reshape(*first, *parts.shape[1:])

        weights = _convert(self._constant(shaped(self.values), name))
        if not self.quantization.is_symmetric:
            zero_point = self._constant(shaped(self.zero_point), f"{name}/zero_point")
            weights = ops.subtract(weights, _convert(zero_point))
        scale = ops.constant(shaped(self.scale), name=f"{name}/scale")
        scaled = ops.multiply(weights, scale)
        if is_grouped:
            shape = np.array([*shaped(self.values).shape[: len(first)], -1], np.int64)
            scaled = ops.reshape(scaled, ops.constant(shape), False)
        return ops.convert(scaled, "f32")

    def _constant(self, values: NDArray[np.uint8], name: str) -> Node:
        bits, _, is_symmetric = self.quantization
        if bits == 8:
            return ops.constant(values, shared_memory=True, name=name)
        pairs = np.resize(values.reshape(-1), (values.size + 1) // 2 * 2).reshape(-1, 2)
        packed = pairs[:, 0] | pairs[:, 1] << 4
        if is_symmetric:
            packed ^= 0x88  # the same numbers less 8, in two's complement
        dtype = ov.Type.i4 if is_symmetric else ov.Type.u4
        return ops.constant(ov.Tensor(packed, values.shape, dtype), shared_memory=False, name=name)


def _convert(node: Node) -> Node:
    return ops.convert(node, "f16")


class WeightFormat:
    """Turns matrices into nodes of one of `WEIGHT_FORMATS`."""

    def __init__(self, name: str) -> None:
        self.quantization = QUANTIZATIONS.get(name, INT8)
        self._is_dense = name in DENSE_FORMATS
        self.compress_to_fp16 = name == "fp16"
        """For `ov.save_model`: what makes fp16 constants of the fp32 ones."""

    def node(self, matrix: QuantizedMatrix, name: str, num_matrices: int = 0) -> Node:
        if not self._is_dense:
            return matrix.node(name, num_matrices)
        dense = matrix.dense()
        if num_matrices:
            dense = dense.reshape(num_matrices, -1, dense.shape[1])
        return ops.constant(dense, name=name)
