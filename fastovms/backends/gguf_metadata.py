"""Reads what the head of a GGUF file says about the model in it.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Tensors are left to
OpenVINO.
"""

from __future__ import annotations

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


def read_gguf_metadata(path: Path) -> dict[str, Value]:
    """
    Raises:
        ConfigurationError: it is no GGUF file, or a broken one.
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
        self._left = size

    def metadata(self) -> dict[str, Value]:
        if self._take(4) != _MAGIC:
            raise _Broken("it does not begin with GGUF")
        version = self._unpack("I")
        if version not in _VERSIONS:
            raise _Broken(f"version {version} is not known")
        self._unpack("Q")  # how many tensors
        metadata: dict[str, Value] = {}
        for _ in range(int(self._unpack("Q"))):
            key = self._string()
            metadata[key] = self._value(int(self._unpack("I")))
        return metadata

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
