"""Finds where in the body of a request a text stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


def place_of(text: str, body: msgspec.Struct) -> str | None:
    """Returns the name of the first value that contains the text, such as
    "messages[0].content[1].text"; None = no value does, as it is given. Takes time in proportion to
    the body."""
    fields = ((field, getattr(body, field)) for field in body.__struct_fields__)
    return next((place for name, value in fields for place in _places(text, value, name)), None)


def _places(text: str, value: object, name: str) -> Iterator[str]:
    if isinstance(value, str):
        if text in value:
            yield name
    elif isinstance(value, Mapping):
        for key, member in value.items():
            if text in key:
                yield name
            yield from _places(text, member, f"{name}.{key}")
    elif isinstance(value, list):
        for position, member in enumerate(value):
            yield from _places(text, member, f"{name}[{position}]")
