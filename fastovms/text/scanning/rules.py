"""Writes grammars for calls: tagged rules, as `params.GrammarKind.TAGGED_RULES` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ANY_TEXT = r"/(.|\n)*/"

# A space or none after a colon or a comma, as models write them; never more, which some would do
# for ever.
_OPTIONS = {
    "whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?",
    "coerce_one_of": True,
}  # fmt: skip
_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


class Rules:
    """Rules under construction. Methods return expressions to be used in further rules."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._tags: dict[str, str] = {}

    def source(self, start: str) -> str:
        return "\n".join([*self._lines, f"start: {start}"])

    def tag(self, text: str) -> str:
        """The markup `text`, which may be a special token. With `until_` before it the expression
        is anything up to and including the tag, with `without_` anything without it."""
        if text not in self._tags:
            self._tags[text] = f"tag{len(self._tags)}"
            self._lines.append(f"%tag {self._tags[text]} {literal(text)}")
        return self._tags[text]

    def text(self, end: str, body: str = ANY_TEXT) -> str:
        """Text and the tag that ends it.

        Args:
            end: expression of a tag.
            body: terminal expression of the text.
        """
        name = f"text{len(self._lines)}"
        self._lines.append(f"%text {name} {end} {body}")
        return name

    def terminal(self, expression: str) -> str:
        """A terminal, where `&` and `~` may be used."""
        name = f"TERMINAL{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name

    def rule(self, expression: str) -> str:
        name = f"rule{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name


def literal(text: str) -> str:
    return json.dumps(text)


def json_value(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _OPTIONS})}"


def json_arguments(parameters: Mapping[str, Any]) -> str:
    """Arguments as a JSON object. A function without parameters takes an empty one."""
    return json_value({**(parameters or _NO_PARAMETERS), "type": "object"})


def one_of(expressions: list[str]) -> str:
    return f"({' | '.join(expressions)})"
