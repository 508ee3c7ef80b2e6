"""Writes the fields of every request by the types that read them, as tables of Markdown."""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]


SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "/v1/completions": ("Completions",),
    "/v1/chat/completions": ("Chat completions", "Completions"),
    "/v1/responses": ("Responses", "Completions"),
    "/v1/messages": ("Messages", "Completions"),
    "/v1/batches": ("Files and batches",),
    "/v1/embeddings": ("Embeddings",),
    "/v1/rerank": ("Rerank",),
    "/v1/score": ("Score",),
    "/api/chat": ("Ollama's chats",),
    "/api/generate": ("Ollama's prompts", "Ollama's chats"),
    "/api/embed": ("Ollama's embeddings",),
    "/api/show": ("Ollama's models",),
}
"""The sections of the page Fields that describe the fields of a path."""


def meanings(fields: str) -> dict[str, dict[str, str]]:
    """Returns what the page Fields says of each field, by section: the sentences before the values
    that a field takes.

    Args:
        fields: the page.
    """
    found = {}
    for section in re.split(r"\n##+ ", fields)[1:]:
        title = section.partition("\n")[0].partition(",")[0]
        head = re.search(r"^\| field \|.*$", section, re.MULTILINE)
        if head is None:
            continue
        column = next(
            number for number, cell in enumerate(head[0].split(" | ")) if "fastovms" in cell
        )
        found[title] = {
            row.split("`")[1]: _before_values(row.split(" | ")[column])
            for row in section.splitlines()
            if row.startswith("| `")
        }
    return found


def _before_values(cell: str) -> str:
    text = re.split(r"[.;]? ?\b[Tt]akes `|, refuses `", cell)[0].strip(" |")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def request_tables(document: Json, fields: str) -> Iterator[tuple[str, Sequence[tuple[str, ...]]]]:
    """Yields each operation with a body in JSON, such as `POST /v1/embeddings`, and its rows: name,
    type and meaning of each field.

    Args:
        document: OpenAPI's document of the server.
        fields: the page Fields, which has the meaning of fields that the types do not describe.
    """
    known = meanings(fields)
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                schema = _resolved(body["schema"], schemas)
                if schema.get("properties"):
                    texts = ChainMap(*(known[title] for title in SECTIONS.get(path, ())))
                    yield f"{method.upper()} {path}", list(_rows(schema, texts))


def _resolved(schema: Json, schemas: Mapping[str, Json]) -> Json:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _rows(schema: Json, texts: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        words = [field.get("description", "").strip() or texts.get(name, "")]
        if name in required:
            words.append("Required.")
        elif field.get("default") is not None:
            words.append(f"Default: `{json.dumps(field['default'])}`.")
        yield f"`{name}`", _type(field), " ".join(filter(None, words))


def _type(schema: Json) -> str:
    """Returns the type of a field in a few words, null left out."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = dict.fromkeys(_type(part) for part in schema[key])
            return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in schema:
        return " ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(part for part in kind if part != "null")
    if kind == "array" and "items" in schema:
        kind = f"list of {_type(schema['items'])}"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None:
        above = "above " if "minimum" not in schema else "from "
        kind += f" {above}{_number(low)}"
    if high is not None:
        below = "below " if "maximum" not in schema else "to "
        kind += f" {below}{_number(high)}"
    return str(kind)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
