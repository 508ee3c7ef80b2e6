"""Reads a GGUF file: metadata, tensors, hyperparameters."""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.errors import ConfigurationError
from fastovms.gguf.parts import PART_ENDING, part_files

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


Value = int | float | bool | str | list["Value"]
Metadata = Mapping[str, Value]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The `struct` format of each scalar metadata type."""

_MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a file's metadata: four times that of a model with 262,000 tokens and 515,000
merges. More would take minutes and gigabytes to read, and indicates wrong counts."""

_MAX_NESTING: Final = 4
_MAX_DIMENSIONS: Final = 4
_ALIGNMENT: Final = 32
"""The alignment of the tensors' data in bytes, if `general.alignment` does not set it."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The position and type of a tensor.

    Attributes:
        path: the file with the tensor's data.
        shape: outermost dimension first, as in numpy; the file has the reverse order.
        type: the storage format.
        offset: the position of the data, in bytes from the beginning of the file.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A model's metadata and tensor positions, read from one file or from all parts of a split
    model."""

    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    def read_rows(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor, uint8 [rows, bytes of a row]; all dimensions but the last
        are merged into rows. The array is memory-mapped."""
        info = self.tensors[name]
        data = np.memmap(info.path, np.uint8, "r", info.offset, (info.num_bytes,))
        return data.reshape(math.prod(info.shape[:-1]), -1)


def read_gguf(path: Path) -> GgufFile:
    """Reads a model's metadata and tensor positions, but not the tensors' data. For a split model,
    `path` may be any part. Raises ConfigurationError if a file is not a GGUF file, is broken, is
    missing, belongs to another model, or has incomplete tensors or an unknown tensor type. The
    format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""
    files = part_files(path)
    heads = [_read_head(file) for file in files]
    tensors: dict[str, TensorInfo] = {}
    for number, (file, head) in enumerate(zip(files, heads, strict=True)):
        _check_part(file, head.metadata, number, len(files))
        for name, info in head.tensors.items():
            if name in tensors:
                raise ConfigurationError(
                    f"{file} cannot be served: {tensors[name].path.name} has the tensor {name}, too"
                )
            tensors[name] = info
    metadata = heads[0].metadata
    expected = metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ConfigurationError(
            f"{files[0]} cannot be served: split.tensors.count is {expected}, but all parts "
            f"have {len(tensors)} tensors"
        )
    return GgufFile(metadata, tensors)


def _check_part(path: Path, metadata: Metadata, number: int, count: int) -> None:
    """Raises ConfigurationError if a file's metadata contradicts the part number in its name."""
    of, part = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if (of, part) == (count, number) or (count == 1 and of == 0):
        return
    reason = f"split.count is {of} and split.no is {part}, but "
    reason += (
        f"its name says that it is part {number + 1} of {count}"
        if count > 1
        else f"its name does not end as those of parts do, such as {PART_ENDING}"
    )
    raise ConfigurationError(f"{path} cannot be served: {reason}")


def _read_head(path: Path) -> GgufFile:
    try:
        with path.open("rb") as file:
            return _HeadReader(path, file).read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except _Broken as error:
        raise ConfigurationError(f"{path} is not a valid GGUF file: {error}") from None


class _Broken(Exception):
    """The file is not a valid GGUF file. The message is the reason."""


class _HeadReader:
    """Reads a file's metadata and tensor list. Reads at most `_MAX_HEAD_BYTES`, and never beyond
    the end of the file, even if the file is malicious."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = path.stat().st_size
        self._num_read = 0

    def read(self) -> GgufFile:
        if self._take(4) != _MAGIC:
            raise _Broken("the file does not begin with GGUF")
        version = self._unpack("I")
        if version not in _VERSIONS:
            raise _Broken(f"GGUF version {version} is not supported; supported are 2 and 3")
        num_tensors = int(self._unpack("Q"))
        metadata: dict[str, Value] = {}
        for _ in range(int(self._unpack("Q"))):
            key = self._string()
            if key in metadata:
                raise _Broken(f"the key {key!r} occurs twice")
            metadata[key] = self._value(int(self._unpack("I")))
        relative = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _Broken(f"general.alignment must be a power of two, not {alignment}")
        start = -(-self._num_read // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for info in relative:
            end = start + info.offset + info.num_bytes
            if end > self._size:
                raise _Broken(
                    f"the file has {self._size} bytes, but the tensor {info.name} ends at {end}"
                )
            if info.name in tensors:
                raise _Broken(f"two tensors have the name {info.name}")
            tensors[info.name] = replace(info, offset=start + info.offset)
        return GgufFile(metadata, tensors)

    def _tensor(self) -> TensorInfo:
        """Reads the description of the next tensor. Its offset is relative to the beginning of the
        tensor data."""
        name = self._string()
        num_dimensions = int(self._unpack("I"))
        if num_dimensions > _MAX_DIMENSIONS:
            raise _Broken(
                f"the tensor {name} has {num_dimensions} dimensions, more than {_MAX_DIMENSIONS}"
            )
        shape = tuple(int(self._unpack("Q")) for _ in range(num_dimensions))[::-1]
        kind, offset = int(self._unpack("I")), int(self._unpack("Q"))
        tensor_type = TENSOR_TYPES.get(kind)
        if tensor_type is None:
            known = TYPE_NAMES.get(kind, f"number {kind}")
            raise _Broken(
                f"the tensor {name} has the type {known}, which is not supported; supported are "
                + ", ".join(sorted(each.name for each in TENSOR_TYPES.values()))
            )
        if not math.prod(shape) or not shape:
            raise _Broken(f"the tensor {name} has the shape {list(shape)}, which has no elements")
        if shape[-1] % tensor_type.block_size:
            raise _Broken(
                f"the tensor {name} has rows of {shape[-1]} values, not a multiple of "
                f"{tensor_type.block_size}"
            )
        return TensorInfo(self._path, name, shape, tensor_type, offset)

    def _take(self, size: int) -> bytes:
        self._num_read += size
        if self._num_read > self._size:
            raise _Broken("the file ends too early")
        if self._num_read > _MAX_HEAD_BYTES:
            raise _Broken(f"the metadata has more than {_MAX_HEAD_BYTES} bytes")
        return self._file.read(size)

    def _unpack(self, form: str) -> int | float | bool:
        (value,) = struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))
        number: int | float | bool = value
        return number

    def _string(self) -> str:
        return self._take(int(self._unpack("Q"))).decode("utf-8", "replace")

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < _MAX_NESTING:
            of_kind, length = int(self._unpack("I")), int(self._unpack("Q"))
            if of_kind in _SCALARS:
                form = f"<{length}{_SCALARS[of_kind]}"
                size = length * struct.calcsize(f"<{_SCALARS[of_kind]}")
                return list(struct.unpack(form, self._take(size)))
            return [self._value(of_kind, depth + 1) for _ in range(length)]
        if kind in _SCALARS:
            return self._unpack(_SCALARS[kind])
        raise _Broken(f"the metadata has a value of the unknown type {kind}")


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture differs from Qwen 2: a decoder with pre-normed attention and gated MLP
    layers.

    Attributes:
        interleaves_rotations: rotary pairs are neighbouring dimensions, as llama.cpp orders the
            rows of Llama's queries and keys.
        fuses_projections: one tensor holds queries, keys and values, and one holds both halves of
            the gated MLP.
        norms_heads: each head's queries and keys are normed before they are rotated.
        norms_outputs: outputs of attention and MLP are normed before they are added.
        activation: the activation of the gated MLP, by OpenVINO's name.
        scales_embeddings: whether embeddings are multiplied by the square root of their size.
        window_period: in each group of this many layers, all but the last use the sliding window; 1
            = all layers do, if the file sets a window; None = windows are not supported.
        gives_windows_their_own_rotation: layers with a window use another, unscaled RoPE base.
        has_convolutions: layers without KV heads have a short convolution instead of attention.
        mlp_norm: the name of the norm before the MLP or the experts.
        has_sinks: attention has sinks, and experts have biases and a limit, as in gpt-oss.
        last_norm: the name of the norm before the output.
        has_experts: layers have a mixture of experts instead of one MLP.
        normalizes_shares: the routing weights of the chosen experts are normalized to sum 1.
        scales_by_hidden_size: numbers of layers (model sizes) at which scores are divided by the
            square root of hidden size per head instead of the head size.
    """

    interleaves_rotations: bool = False
    fuses_projections: bool = False
    norms_heads: bool = False
    norms_outputs: bool = False
    activation: str = "Swish"
    scales_embeddings: bool = False
    window_period: int | None = None
    gives_windows_their_own_rotation: bool = False
    has_convolutions: bool = False
    mlp_norm: str = "ffn_norm"
    has_sinks: bool = False
    last_norm: str = "output_norm"
    has_experts: bool = False
    normalizes_shares: bool = False
    scales_by_hidden_size: frozenset[int] = frozenset()


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    # Llama 1 to 3, Mistral and models of the same architecture.
    "llama": Architecture(interleaves_rotations=True, window_period=1),
    "qwen2": Architecture(),
    "qwen3": Architecture(norms_heads=True),
    "qwen3moe": Architecture(norms_heads=True, has_experts=True, normalizes_shares=True),
    "phi3": Architecture(fuses_projections=True, window_period=1),
    "gemma": Architecture(activation="Gelu", scales_embeddings=True),
    "gemma3": Architecture(
        norms_heads=True,
        norms_outputs=True,
        activation="Gelu",
        scales_embeddings=True,
        window_period=6,
        gives_windows_their_own_rotation=True,
        scales_by_hidden_size=frozenset({62}),  # the number of layers of the 27B model
    ),
    "gpt-oss": Architecture(
        mlp_norm="post_attention_norm", has_sinks=True, has_experts=True, window_period=2
    ),
    "lfm2": Architecture(norms_heads=True, has_convolutions=True, last_norm="token_embd_norm"),
}
"""The supported architectures, by `general.architecture`."""

_REFUSED: Final[Mapping[str, str]] = {
    "gemma2": "its attention has a soft cap, which OpenVINO's paged attention cannot compute",
}
"""Well-known architectures that are not supported, and the reason for each."""


def find_architecture(name: object) -> Architecture:
    """Returns the architecture of this name. Raises ConfigurationError if it is not supported."""
    if not isinstance(name, str):
        raise ConfigurationError("general.architecture is missing")
    if name in _REFUSED:
        raise ConfigurationError(f"architecture {name} is not supported: {_REFUSED[name]}")
    if name not in ARCHITECTURES:
        taken = ", ".join(ARCHITECTURES)
        raise ConfigurationError(f"architecture {name} is not supported; supported are {taken}")
    return ARCHITECTURES[name]


_NEUTRAL: Final[Mapping[str, frozenset[Value | None]]] = {
    "attention.causal": frozenset({True}),
    "expert_count": frozenset({0}),
    "expert_used_count": frozenset({0}),
    "expert_gating_func": frozenset({1}),  # softmax
    "pooling_type": frozenset({0}),
}
"""Settings that are supported only with their neutral values."""

_MAX_LAYERS: Final = 512
"""As in llama.cpp (`LLAMA_MAX_LAYERS`)."""

_MAX_CONVOLUTION: Final = 64
"""The maximum number of tokens that a short convolution spans; those of LFM 2 span 3."""

_MAX_EXPERTS: Final = 512
"""As in llama.cpp (`LLAMA_MAX_EXPERTS`)."""

_MAX_WIDTH: Final = 2**20
"""The maximum number of dimensions of all heads together."""

_MAX_COUNT: Final = 2**31 - 1

_IGNORED: Final = frozenset(
    {
        "vocab_size",
        "tensor_data_layout",
        "rope.scaling.finetuned",
        "feed_forward_length",
        "expert_feed_forward_length",
    }
)
"""Settings that have no effect, or repeat what the tensors' shapes show."""


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """The RoPE parameters, in llama.cpp's terms.

    Attributes:
        num_dimensions: the number of rotated dimensions of a head.
        scaling: "none", "linear", "yarn" or "longrope". Files with longrope's tensors may omit it.
        factor: the divisor of positions.
        original_context: the context length of the original training, in tokens.
        attention_factor: the factor of cosines and sines.
        beta_fast, beta_slow: rotations in the original context between which yarn passes from
            unscaled to scaled frequencies.
        extrapolation: the share of unscaled frequencies in yarn, 0 to 1.
        rounds_yarn: whether the two dimensions at these rotations are rounded to integers.
    """

    num_dimensions: int
    base: float
    scaling: str
    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    extrapolation: float
    rounds_yarn: bool


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """The sizes of a mixture-of-experts layer.

    Attributes:
        num_experts: the number of experts.
        num_chosen: the number of experts per token.
    """

    num_experts: int
    num_chosen: int


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The sizes and settings of a decoder.

    Attributes:
        num_layers, hidden_size, num_heads, num_kv_heads, head_size: the sizes of the model.
        context_length: the maximum length of a sequence in tokens.
        norm_epsilon: the epsilon of RMS norms.
        rope: the RoPE parameters of layers without a window, and of all layers if
            `window_rope_base` is None.
        window: the size of the sliding window in tokens, including the current one; 0 = none.
        windowed_layers: whether each layer has a window.
        convolved_layers: whether each layer has a short convolution instead of attention.
        conv_columns: the number of tokens that a convolution spans.
        window_rope_base: the RoPE base of layers with a window; None = as in the other layers.
        score_scale: the factor of attention scores.
        final_soft_cap: the soft cap of the logits; 0 = none.
        experts: None = each layer has one MLP.
    """

    name: str
    architecture: Architecture
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    context_length: int
    norm_epsilon: float
    rope: RopeSettings
    window: int
    windowed_layers: tuple[bool, ...]
    convolved_layers: tuple[bool, ...]
    conv_columns: int
    window_rope_base: float | None
    score_scale: float
    final_soft_cap: float
    experts: ExpertSettings | None


def read_hyperparameters(metadata: Metadata) -> Hyperparameters:
    """Reads the sizes and settings of a decoder. Raises ConfigurationError if the architecture is
    not supported, or a setting is missing, invalid or unknown. Unknown settings are refused because
    they may change the model's results."""
    name = metadata.get("general.architecture")
    architecture = find_architecture(name)
    settings = _Settings(metadata, str(name))
    _check_kind(metadata)
    num_layers = settings.count("block_count", most=_MAX_LAYERS)
    hidden_size = settings.count("embedding_length")
    num_heads = settings.count("attention.head_count")
    convolved_layers = _convolved_layers(settings, architecture, num_layers)
    num_kv_heads = settings.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigurationError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads: not a multiple"
        )
    head_size = settings.count("attention.key_length", hidden_size // num_heads)
    value_size = settings.count("attention.value_length", hidden_size // num_heads)
    if value_size != head_size:
        raise ConfigurationError(
            f"attention.value_length is {value_size}, but must be attention.key_length, {head_size}"
        )
    if num_heads * head_size > _MAX_WIDTH:
        raise ConfigurationError(
            f"{num_heads} heads of {head_size} dimensions have more than {_MAX_WIDTH} in all"
        )
    context_length = settings.count("context_length")
    window = settings.count("attention.sliding_window", 0, least=0)
    if architecture.window_period is None and 0 < window < context_length:
        raise ConfigurationError(f"{name} with a sliding window is not supported")
    if window >= context_length or architecture.window_period is None:
        window = 0
    per_head = head_size
    if num_layers in architecture.scales_by_hidden_size:
        per_head = hidden_size // num_heads
    parameters = Hyperparameters(
        name=str(name),
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        context_length=context_length,
        norm_epsilon=settings.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(settings, architecture, head_size, context_length),
        window=window,
        windowed_layers=_windowed_layers(settings, architecture, num_layers, window),
        convolved_layers=convolved_layers,
        conv_columns=(
            settings.count("shortconv.l_cache", most=_MAX_CONVOLUTION)
            if architecture.has_convolutions
            else 0
        ),
        window_rope_base=(
            settings.positive("rope.freq_base_swa", 10_000.0)
            if architecture.gives_windows_their_own_rotation
            else None
        ),
        score_scale=per_head**-0.5,
        final_soft_cap=settings.number("final_logit_softcapping", 0.0),
        experts=_experts(settings) if architecture.has_experts else None,
    )
    settings.check_rest()
    return parameters


def _check_kind(metadata: Metadata) -> None:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigurationError(f"general.type must be model, not {kind}")


def _convolved_layers(
    settings: _Settings, architecture: Architecture, num_layers: int
) -> tuple[bool, ...]:
    """Returns whether each layer has no KV heads, and replaces the setting by the number of KV
    heads of the other layers."""
    heads = settings.take("attention.head_count_kv", None)
    if not architecture.has_convolutions or not isinstance(heads, list):
        settings.put_back("attention.head_count_kv", heads)
        return (False,) * num_layers
    if len(heads) != num_layers or not any(heads):
        raise ConfigurationError(
            f"attention.head_count_kv must have a number for each of {num_layers} layers, not all "
            f"of them 0, not {reprlib.repr(heads)}"
        )
    settings.put_back("attention.head_count_kv", [each for each in heads if each != 0])
    return tuple(each == 0 for each in heads)


def _experts(settings: _Settings) -> ExpertSettings:
    num_experts = settings.count("expert_count", most=_MAX_EXPERTS)
    return ExpertSettings(num_experts, settings.count("expert_used_count", most=num_experts))


def _rope(
    settings: _Settings, architecture: Architecture, head_size: int, context_length: int
) -> RopeSettings:
    num_dimensions = settings.count("rope.dimension_count", head_size)
    if num_dimensions > head_size or num_dimensions % 2:
        raise ConfigurationError(
            f"rope.dimension_count {num_dimensions} is not possible for heads of "
            f"{head_size} dimensions"
        )
    if architecture.interleaves_rotations and num_dimensions != head_size:
        raise ConfigurationError(
            f"only {num_dimensions} of {head_size} dimensions are rotated, which is not supported"
        )
    factor = settings.number("rope.scaling.factor", 0.0) or settings.number(
        "rope.scale_linear", 0.0
    )
    scaling = settings.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise ConfigurationError(
            f"rope.scaling.type must be none, linear, yarn or longrope, not {scaling}"
        )
    return RopeSettings(
        num_dimensions=num_dimensions,
        base=settings.positive("rope.freq_base", 10_000.0),
        scaling=scaling,
        factor=factor or 1.0,
        original_context=settings.count("rope.scaling.original_context_length", context_length),
        attention_factor=settings.positive("rope.scaling.attn_factor", 1.0)
        * settings.positive("rope.scaling.yarn_attn_factor", 1.0),
        beta_fast=settings.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=settings.positive("rope.scaling.yarn_beta_slow", 1.0),
        extrapolation=settings.number("rope.scaling.yarn_ext_factor", 1.0),
        rounds_yarn=not architecture.has_sinks,  # gpt-oss's own configuration says so
    )


def _windowed_layers(
    settings: _Settings, architecture: Architecture, num_layers: int, window: int
) -> tuple[bool, ...]:
    pattern = settings.take("attention.sliding_window_pattern", None)
    if not window:
        return (False,) * num_layers
    if pattern is None:
        pattern = 0 if architecture.window_period == 1 else architecture.window_period
    if isinstance(pattern, list):
        if len(pattern) < num_layers or not all(isinstance(each, bool) for each in pattern):
            raise ConfigurationError(
                "attention.sliding_window_pattern must have a boolean for each layer"
            )
        return tuple(bool(each) for each in pattern[:num_layers])
    if not isinstance(pattern, int) or pattern < 0:
        raise ConfigurationError(
            f"attention.sliding_window_pattern must be a number of layers, not {pattern}"
        )
    # As in llama.cpp, where 0 means all layers and 1 none.
    return tuple(pattern == 0 or layer % pattern < pattern - 1 for layer in range(num_layers))


class _Settings:
    """Reads the settings of a file's architecture, and records which ones were read."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        prefix = f"{architecture}."
        self._prefix = prefix
        self._left = {
            key.removeprefix(prefix): value
            for key, value in metadata.items()
            if key.startswith(prefix)
        }

    def take(self, name: str, default: Value | None) -> Value | None:
        return self._left.pop(name, default)

    def put_back(self, name: str, value: Value | None) -> None:
        if value is not None:
            self._left[name] = value

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MAX_COUNT
    ) -> int:
        """Returns an integer setting. A list with one value per layer is accepted if all values are
        equal."""
        value = self._left.pop(name, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigurationError(
                f"{self._prefix}{name} must be a count of {least} to {most}, not "
                f"{reprlib.repr(value)}"
            )
        return value

    def positive(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if value == 0:
            raise ConfigurationError(f"{self._prefix}{name} must be above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a setting that is a finite, non-negative number."""
        value = self._left.pop(name, default)
        if value is None:
            raise ConfigurationError(f"{self._prefix}{name} is missing")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < inf:
            raise ConfigurationError(f"{self._prefix}{name} must be a number, not {value}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"{self._prefix}{name} must be a string, not {value}")
        return value

    def check_rest(self) -> None:
        """Raises ConfigurationError if a setting was not read and does not have its neutral
        value."""
        for name, value in sorted(self._left.items()):
            if name in _IGNORED:
                continue
            if isinstance(value, list) or value not in _NEUTRAL.get(name, ()):
                raise ConfigurationError(
                    f"the setting {self._prefix}{name} ({value}) is not supported"
                )
