"""Reads the fields of structural tags, their types checked. A fault raises a ValueError that names
the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Value = Mapping[str, Any]


def member(value: Value, path: str, name: str, kind: type | tuple[type, ...]) -> Any:
    found = value.get(name) if isinstance(value, Mapping) else None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise ValueError(f"{path}.{name}".removeprefix(".") + f" must be {words}")
    return found


_WORDS: Final = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def text_of(value: Value, path: str, name: str) -> str:
    text: str = member(value, path, name, str)
    if not text:
        raise ValueError(f"{path}.{name} must not be empty")
    return text


def list_of(value: Value, path: str, name: str) -> list[Any]:
    found: list[Any] = member(value, path, name, list)
    if not found:
        raise ValueError(f"{path}.{name} must not be empty")
    return found


def texts_of(value: Value, path: str, name: str, default: Sequence[str] | None = None) -> list[str]:
    if default is not None and value.get(name) is None:
        return list(default)
    found = member(value, path, name, list)
    if not all(isinstance(text, str) and text for text in found) or (default is None and not found):
        raise ValueError(f"{path}.{name} must be a list of strings that are not empty")
    return list(dict.fromkeys(found))


def flag_of(value: Value, path: str, name: str) -> bool:
    flag: bool = member({name: False, **value}, path, name, bool)
    return flag
