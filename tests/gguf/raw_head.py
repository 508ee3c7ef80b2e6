"""Writes valid and invalid heads of GGUF files."""

from __future__ import annotations

import struct

UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, value: int | float | str | list[str] | list[int]) -> bytes:
    return string(key) + _typed(value)


def _typed(value: object) -> bytes:
    match value:
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(string, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", ARRAY, INT32, len(value), *value)
    raise TypeError(type(value))


def head(entries: list[bytes], num_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(entries)) + b"".join(entries)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)
