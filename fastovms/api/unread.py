"""Finds the fields of a request's body that the server does not know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec

_MAX_NAMES: Final = 16
"""The number of names that one request's warning has."""

_MAX_NAME: Final = 60
"""Characters of a member's name that a warning repeats."""

_NOTHING: Final[tuple[object, ...]] = (None, "", [], {})
"""Values of unknown members that ask for nothing."""


@dataclass(frozen=True, slots=True)
class Members:
    """The known fields of the objects at one path of a body.

    Attributes:
        names: the fields, each with the known fields of its own objects; None = any.
        kinds: the fields by the `type` of the object ("" = no type), instead of `names`. Objects of
            other types are not examined.
    """

    names: Mapping[str, Members | None] = field(default_factory=dict)
    kinds: Mapping[str, Members] | None = None


def known(*names: str, **inner: Members) -> Members:
    """Returns known fields: `names` without known fields of their own, and `inner` with them."""
    return Members({**dict.fromkeys(names), **inner})


def unread_names(body: bytes, decoded: msgspec.Struct, members: Members) -> list[str]:
    """Returns the names of the fields in a body that the server does not know, such as
    "messages[].mood". Fields without a value are left out.

    Args:
        body: the object as JSON.
        decoded: the object as the decoded struct.
        members: the known fields of the struct's fields.
    """
    found: dict[str, None] = {}
    fields = _fields(type(decoded))
    for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items():
        if name not in fields and bytes(raw) not in (b"null", b'""', b"[]", b"{}"):
            _add(found, name)
    for name, inner in members.names.items():
        if inner is not None:
            _examine(getattr(decoded, name), inner, name, found)
    return list(found)


def unknown_warning(names: Iterable[str]) -> str:
    """Returns the warning about unknown fields of a request."""
    return f"unknown, and ignored: {', '.join(names)}"


def shown(names: Iterable[str]) -> list[str]:
    """Returns a few of the names, escaped and shortened for a header field."""
    found: dict[str, None] = {}
    for name in names:
        _add(found, name)
    return list(found)


@cache
def _fields(schema: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(schema.__struct_fields__)


def _examine(value: Any, members: Members, place: str, found: dict[str, None]) -> None:
    if isinstance(value, list):
        place = f"{place}[]"
        for element in value:
            _examine(element, members, place, found)
        return
    if not isinstance(value, dict):
        return
    if members.kinds is not None:
        kind = value.get("type", "")
        of_kind = members.kinds.get(kind) if isinstance(kind, str) else None
        if of_kind is None:
            return
        members = of_kind
    for name, member in value.items():
        if name not in members.names:
            if member not in _NOTHING:
                _add(found, f"{place}.{name[:_MAX_NAME]}")
        elif (inner := members.names[name]) is not None:
            _examine(member, inner, f"{place}.{name}", found)


def _add(found: dict[str, None], name: str) -> None:
    if len(found) < _MAX_NAMES:
        found[json.dumps(name[: 2 * _MAX_NAME])[1:-1]] = None
