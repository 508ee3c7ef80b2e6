"""Reads the head of a GGUF file, and the bytes of its tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from fastovms.errors import ConfigurationError
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
"""The formats of `struct` by type."""

_MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""The longest head that is read: four times that of a model with 262,000 tokens and 515,000 merges.
A file that says more has counts that are wrong, and would take minutes and gigabytes to read."""

_MAX_NESTING: Final = 4
_MAX_DIMENSIONS: Final = 4
_ALIGNMENT: Final = 32
"""The alignment of the tensors' data in bytes, where `general.alignment` says nothing else."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Says where a tensor is.

    Attributes:
        shape: outermost dimension first, as in numpy; the file has them the other way round.
        type: how its numbers are written.
        offset: where it begins, in bytes from the beginning of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file whose head has been read, and which holds all the tensors that it names."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    def read_rows(self, name: str) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor, one row for each but the last dimension. They are mapped
        into memory and read when they are looked at."""
        info = self.tensors[name]
        data = np.memmap(self.path, np.uint8, "r", info.offset, (info.num_bytes,))
        return data.reshape(math.prod(info.shape[:-1]), -1)


def read_gguf(path: Path) -> GgufFile:
    """Reads all but the tensors' data.

    Raises:
        ConfigurationError: it is no GGUF file, or a broken one, or its tensors are not all there or
            of a type that is not known.
    """
    try:
        with path.open("rb") as file:
            return _HeadReader(file, path.stat().st_size).read(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except _Broken as error:
        raise ConfigurationError(f"{path} is not a sound GGUF file: {error}") from None


class _Broken(Exception):
    pass


class _HeadReader:
    """Reads a head, and never more than the file has or `_MAX_HEAD_BYTES`, whatever the file
    says."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._num_read = 0

    def read(self, path: Path) -> GgufFile:
        if self._take(4) != _MAGIC:
            raise _Broken("it does not begin with GGUF")
        version = self._unpack("I")
        if version not in _VERSIONS:
            raise _Broken(f"version {version} is not known")
        num_tensors = int(self._unpack("Q"))
        metadata: dict[str, Value] = {}
        for _ in range(int(self._unpack("Q"))):
            key = self._string()
            if key in metadata:
                raise _Broken(f"it has {key!r} twice")
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
                raise _Broken(f"it has {self._size} bytes, but {info.name} ends at {end}")
            if info.name in tensors:
                raise _Broken(f"it has two tensors {info.name}")
            tensors[info.name] = TensorInfo(info.name, info.shape, info.type, start + info.offset)
        return GgufFile(path, metadata, tensors)

    def _tensor(self) -> TensorInfo:
        """Reads what is said of the next tensor. Its offset counts from where all data begin."""
        name = self._string()
        num_dimensions = int(self._unpack("I"))
        if num_dimensions > _MAX_DIMENSIONS:
            raise _Broken(f"{name} has {num_dimensions} dimensions")
        shape = tuple(int(self._unpack("Q")) for _ in range(num_dimensions))[::-1]
        kind, offset = int(self._unpack("I")), int(self._unpack("Q"))
        tensor_type = TENSOR_TYPES.get(kind)
        if tensor_type is None:
            known = TYPE_NAMES.get(kind, f"number {kind}")
            raise _Broken(
                f"{name} is of type {known}, which is not read; read are "
                + ", ".join(sorted(each.name for each in TENSOR_TYPES.values()))
            )
        if not math.prod(shape) or not shape:
            raise _Broken(f"{name} is of shape {list(shape)}, without numbers")
        if shape[-1] % tensor_type.block_size:
            raise _Broken(f"{name} has rows that are no multiple of {tensor_type.block_size}")
        return TensorInfo(name, shape, tensor_type, offset)

    def _take(self, size: int) -> bytes:
        self._num_read += size
        if self._num_read > self._size:
            raise _Broken("it ends too early")
        if self._num_read > _MAX_HEAD_BYTES:
            raise _Broken(f"what it says of itself is longer than {_MAX_HEAD_BYTES} bytes")
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
        raise _Broken(f"type {kind} is not known")
