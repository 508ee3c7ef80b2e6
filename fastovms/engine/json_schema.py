"""JSON schemas as llguidance takes them, by themselves and in rules of Lark."""

from __future__ import annotations

import json
import re
from typing import Final

from fastovms.engine.finite_schema import Schema, parts_of, rewritten, without_endless_parts

_FORMATS: Final = {
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
}  # fmt: skip
"""That llguidance knows."""

_NEEDS_A_LOOK: Final = re.compile(r'"(?:\$ref|format)"')
_EMBEDDED: Final = re.compile(
    r""""(?:\\.|[^"\\\n])*"|(?://|\#)[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<json>%json\s*)(?=\{)"""
)


def usable_schema(source: str) -> str:
    """The schema without what llguidance cannot bear and need not know: parts that no finite value
    satisfies, and formats that it has not, which are annotations (JSON Schema 2020-12, 7.2.3).

    Raises:
        ValueError: it is no JSON, nothing satisfies it, or it is too large to tell.
    """
    if _NEEDS_A_LOOK.search(source) is None:
        return source
    schema = json.loads(source)
    usable = _usable(schema)
    if usable is False:
        raise ValueError("nothing satisfies it")
    return source if usable is schema else json.dumps(usable)


def usable_rules(lark: str) -> str:
    """The same of each schema in rules of Lark."""
    if _NEEDS_A_LOOK.search(lark) is None:
        return lark
    pieces: list[str] = []
    position = 0
    for match in _EMBEDDED.finditer(lark):
        if match["json"] is None or match.start() < position:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, match.end())
        except ValueError:  # llguidance says what is wrong with it
            continue
        usable = _usable(schema)
        if usable is False:
            raise ValueError("nothing satisfies a schema in it")
        if usable is not schema:
            pieces += [lark[position : match.end()], json.dumps(usable)]
            position = end
    return "".join([*pieces, lark[position:]])


def _usable(schema: object) -> object:
    return without_endless_parts(_without_unknown_formats(schema))


def _without_unknown_formats(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    found = {
        id(part)
        for part in parts_of(schema)
        if isinstance(part.get("format"), str) and part["format"] not in _FORMATS
    }
    if not found:
        return schema
    return rewritten(schema, lambda part: _without_format(part) if id(part) in found else part)


def _without_format(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "format"}
