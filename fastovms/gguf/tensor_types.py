"""Unpacks the tensor types of GGUF files to groups of integers, scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class NumberGroups(NamedTuple):
    """The values of quantized blocks, in groups: `scale * (integer - zero_point)`, with one scale
    and one zero point per group. If the file has a minimum instead of a zero point, the zero point
    is not an integer. The layouts: ggml-common.h and ggml-quants.c of
    https://github.com/ggml-org/ggml.

    Attributes:
        integers: u8 or i8, [blocks, groups, values].
        scales: [blocks, groups].
        zero_points: [blocks, groups], or None if all are 0.
    """

    integers: NDArray[np.uint8] | NDArray[np.int8]
    scales: Floats
    zero_points: Floats | None = None


@dataclass(frozen=True, slots=True)
class TensorType:
    """The storage format of a tensor.

    Attributes:
        name: the name used in file names.
        block_size: values per block.
        bits: the number of bits of each integer of a group; 0 = the values are floats.
        unpack: converts blocks, [blocks, block_bytes], to groups; None = the values are floats.
    """

    name: str
    block_size: int
    block_bytes: int
    bits: int = 0
    unpack: Callable[[Bytes], NumberGroups] | None = None

    @property
    def group_size(self) -> int:
        """The numbers that share a scale."""
        if self.unpack is None:
            return 1
        return int(self.unpack(np.zeros((1, self.block_bytes), np.uint8)).integers.shape[-1])


def _halves(blocks: Bytes) -> Floats:
    """Reads f16 values."""
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _nibbles(blocks: Bytes, half: int) -> Bytes:
    """Reads 4-bit integers: from each `half` bytes first the lower nibbles, then the upper nibbles.
    Returns [blocks, -1]."""
    parts = np.ascontiguousarray(blocks).reshape(len(blocks), -1, half)
    found = np.empty((*parts.shape[:2], 2, half), np.uint8)
    np.bitwise_and(parts, np.uint8(0x0F), out=found[:, :, 0])
    np.right_shift(parts, np.uint8(4), out=found[:, :, 1])
    return found.reshape(len(blocks), -1)


def _bits(blocks: Bytes, width: int, run: int) -> Bytes:
    """Reads integers of `width` bits: from each `run` bytes first the lowest bits. Returns [blocks,
    -1]."""
    parts = blocks.reshape(len(blocks), -1, 1, run)
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    return ((parts >> shifts) & np.uint8((1 << width) - 1)).reshape(len(blocks), -1)


def _fifth_bits(blocks: Bytes) -> Bytes:
    """Reads the fifth bit of each of 32 integers. Returns [blocks, 32]."""
    return np.unpackbits(np.ascontiguousarray(blocks), axis=1, bitorder="little")


def _signed(integers: Bytes, zero: int) -> NDArray[np.int8]:
    return integers.astype(np.int8) - np.int8(zero)


def _affine(integers: Bytes, scales: Floats, minimums: Floats) -> NumberGroups:
    """Returns groups for values `scale * integer + minimum`."""
    # With scale 0 the values equal the minimum; a zero point can express it only with another
    # scale.
    is_flat = scales == 0
    if is_flat.any():
        scales = np.where(is_flat, np.float32(1), scales)
        integers = np.where(is_flat[..., None], np.uint8(0), integers)
    return NumberGroups(integers, scales, (-minimums / scales).astype(np.float32))


def _q4_0(blocks: Bytes) -> NumberGroups:
    return NumberGroups(_signed(_nibbles(blocks[:, 2:], 16), 8)[:, None], _halves(blocks[:, :2]))


def _q4_1(blocks: Bytes) -> NumberGroups:
    integers = _nibbles(blocks[:, 4:], 16)[:, None]
    return _affine(integers, _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q5_0(blocks: Bytes) -> NumberGroups:
    integers = _nibbles(blocks[:, 6:], 16) | (_fifth_bits(blocks[:, 2:6]) << np.uint8(4))
    return NumberGroups(_signed(integers, 16)[:, None], _halves(blocks[:, :2]))


def _q5_1(blocks: Bytes) -> NumberGroups:
    integers = _nibbles(blocks[:, 8:], 16) | (_fifth_bits(blocks[:, 4:8]) << np.uint8(4))
    return _affine(integers[:, None], _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q8_0(blocks: Bytes) -> NumberGroups:
    integers = np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    return NumberGroups(integers[:, None], _halves(blocks[:, :2]))


def _q2_k(blocks: Bytes) -> NumberGroups:
    scale = _halves(blocks[:, 80:82]) * (blocks[:, :16] & np.uint8(0x0F))
    minimum = _halves(blocks[:, 82:84]) * (blocks[:, :16] >> np.uint8(4))
    integers = _bits(blocks[:, 16:80], 2, 32).reshape(-1, 16, 16)
    return _affine(integers, scale, -minimum)


def _q3_k(blocks: Bytes) -> NumberGroups:
    low = _nibbles(blocks[:, 96:104], 8)
    high = _bits(blocks[:, 104:108], 2, 4)
    factors = _signed(low | (high << np.uint8(4)), 32)
    integers = _bits(blocks[:, 32:96], 2, 32) | (_bits(blocks[:, :32], 1, 32) << np.uint8(2))
    scales = _halves(blocks[:, 108:110]) * factors
    return NumberGroups(_signed(integers, 4).reshape(-1, 16, 16), scales)


def _scales_and_minimums(blocks: Bytes) -> tuple[Floats, Floats]:
    """Reads the header that Q4_K and Q5_K share: two f16 numbers, and a 6-bit scale and a 6-bit
    minimum for each of 8 groups of 32 values."""
    scales, minimums, rest = (blocks[:, start : start + 4] for start in (4, 8, 12))
    upper_scales = (rest & np.uint8(0x0F)) | ((scales >> np.uint8(6)) << np.uint8(4))
    upper_minimums = (rest >> np.uint8(4)) | ((minimums >> np.uint8(6)) << np.uint8(4))
    return (
        _halves(blocks[:, :2]) * np.concatenate([scales & np.uint8(0x3F), upper_scales], axis=1),
        _halves(blocks[:, 2:4])
        * np.concatenate([minimums & np.uint8(0x3F), upper_minimums], axis=1),
    )


def _q4_k(blocks: Bytes) -> NumberGroups:
    scales, minimums = _scales_and_minimums(blocks)
    return _affine(_nibbles(blocks[:, 16:], 32).reshape(-1, 8, 32), scales, -minimums)


def _q5_k(blocks: Bytes) -> NumberGroups:
    scales, minimums = _scales_and_minimums(blocks)
    integers = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 1, 32) << np.uint8(4))
    return _affine(integers.reshape(-1, 8, 32), scales, -minimums)


def _q6_k(blocks: Bytes) -> NumberGroups:
    integers = _nibbles(blocks[:, :128], 64) | (_bits(blocks[:, 128:192], 2, 32) << np.uint8(4))
    factors = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    scales = _halves(blocks[:, 208:210]) * factors
    return NumberGroups(_signed(integers, 32).reshape(-1, 16, 16), scales)


_UNEVEN: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""The integers for the 16 codes of IQ4_NL and IQ4_XS."""


def _iq4_nl(blocks: Bytes) -> NumberGroups:
    return NumberGroups(_UNEVEN[_nibbles(blocks[:, 2:], 16)][:, None], _halves(blocks[:, :2]))


_MXFP4: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of the 16 codes of MXFP4."""


def _mxfp4(blocks: Bytes) -> NumberGroups:
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return NumberGroups(_MXFP4[_nibbles(blocks[:, 1:], 16)][:, None], scales)


def _iq4_xs(blocks: Bytes) -> NumberGroups:
    low = _bits(blocks[:, 4:8], 4, 1)
    high = _bits(blocks[:, 2:4], 2, 1)
    scales = _halves(blocks[:, :2]) * _signed(low | (high << np.uint8(4)), 32)
    return NumberGroups(_UNEVEN[_nibbles(blocks[:, 8:], 16)].reshape(-1, 8, 32), scales)


F32: Final = TensorType("F32", 1, 4)
F16: Final = TensorType("F16", 1, 2)
BF16: Final = TensorType("BF16", 1, 2)

TENSOR_TYPES: Final[Mapping[int, TensorType]] = {
    0: F32,
    1: F16,
    30: BF16,
    2: TensorType("Q4_0", 32, 18, 4, _q4_0),
    3: TensorType("Q4_1", 32, 20, 4, _q4_1),
    6: TensorType("Q5_0", 32, 22, 8, _q5_0),
    7: TensorType("Q5_1", 32, 24, 8, _q5_1),
    8: TensorType("Q8_0", 32, 34, 8, _q8_0),
    10: TensorType("Q2_K", 256, 84, 4, _q2_k),
    11: TensorType("Q3_K", 256, 110, 4, _q3_k),
    12: TensorType("Q4_K", 256, 144, 4, _q4_k),
    13: TensorType("Q5_K", 256, 176, 8, _q5_k),
    14: TensorType("Q6_K", 256, 210, 8, _q6_k),
    20: TensorType("IQ4_NL", 32, 18, 8, _iq4_nl),
    23: TensorType("IQ4_XS", 256, 136, 8, _iq4_xs),
    39: TensorType("MXFP4", 32, 17, 8, _mxfp4),
}
"""The supported tensor types, by their numbers in a file."""

TYPE_NAMES: Final[Mapping[int, str]] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
"""The names of unsupported tensor types, for error messages."""
