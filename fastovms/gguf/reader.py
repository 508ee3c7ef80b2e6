"""Reads a GGUF file: metadata and tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from fastovms.errors import ConfigurationError
from fastovms.gguf.parts import PART_ENDING, part_files
from fastovms.gguf.tensor_types import TENSOR_TYPES, TYPE_NAMES, TensorType

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
