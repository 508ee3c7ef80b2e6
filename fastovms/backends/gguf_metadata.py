"""Reads what the head of a GGUF file says about the model in it.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Tensors are left to
OpenVINO, which does not look whether the file ends before them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from fastovms.errors import ConfigurationError

Value = int | float | bool | str | list["Value"]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The formats of `struct` by type."""

_MAX_NESTING: Final = 4
_MAX_DIMENSIONS: Final = 4
_ALIGNMENT: Final = 32
"""Of the tensors' data, where `general.alignment` says nothing else."""

_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4), 1: (1, 2), 30: (1, 2),  # F32, F16, BF16
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),  # Q4_0 to Q8_0
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),  # Q2_K to Q6_K
}  # fmt: skip
"""Numbers and bytes of a block by the type of a tensor."""


def read_gguf_metadata(path: Path) -> dict[str, Value]:
    """
    Raises:
        ConfigurationError: it is no GGUF file, or a broken one, or its tensors are not all there.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size).metadata()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except _Broken as error:
        raise ConfigurationError(f"{path} is not a sound GGUF file: {error}") from None


class _Broken(Exception):
    pass


class _Reader:
    """Never reads more than the file has, whatever the file says."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._left = size

    def metadata(self) -> dict[str, Value]:
        if self._take(4) != _MAGIC:
            raise _Broken("it does not begin with GGUF")
        version = self._unpack("I")
        if version not in _VERSIONS:
            raise _Broken(f"version {version} is not known")
        num_tensors = int(self._unpack("Q"))
        metadata: dict[str, Value] = {}
        for _ in range(int(self._unpack("Q"))):
            key = self._string()
            metadata[key] = self._value(int(self._unpack("I")))
        end = max((self._tensor_end() for _ in range(num_tensors)), default=0)
        alignment = metadata.get("general.alignment")
        if not isinstance(alignment, int) or alignment < 1:
            alignment = _ALIGNMENT
        start = math.ceil((self._size - self._left) / alignment) * alignment
        if num_tensors and start + end > self._size:
            raise _Broken(f"it has {self._size} bytes, but its tensors end at {start + end}")
        return metadata

    def _tensor_end(self) -> int:
        """Reads what is said of the next tensor: where its data end, from where all data begin."""
        self._string()
        num_dimensions = int(self._unpack("I"))
        if num_dimensions > _MAX_DIMENSIONS:
            raise _Broken(f"a tensor has {num_dimensions} dimensions")
        count = math.prod(int(self._unpack("Q")) for _ in range(num_dimensions))
        numbers, size = _BLOCKS.get(int(self._unpack("I")), (1, 0))
        return int(self._unpack("Q")) + count // numbers * size

    def _take(self, size: int) -> bytes:
        if size > self._left:
            raise _Broken("it ends too early")
        self._left -= size
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
