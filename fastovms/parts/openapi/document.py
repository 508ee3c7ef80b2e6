"""Builds the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fastovms import __version__
from fastovms.api.admin import DOCS_PATHS, HEALTH_PATHS
from fastovms.api.dialect import OPENAI, Dialect, dialect_of
from fastovms.api.endpoint import EmptyAnswer, Operation
from fastovms.parts.openapi import schemas
from fastovms.parts.openapi.examples import EXAMPLES, Answer, Requests
from fastovms.request_fields import Range, Row, rows_of

Json = dict[str, Any]


def body_schema(
    kind: type[msgspec.Struct], component: Json, required: tuple[str, ...], dialect: Dialect
) -> Json:
    """Returns the JSON schema of a request body in a dialect.

    Args:
        kind: the type of the body.
        component: the type's schema in all dialects.
        required: the fields that are required in every dialect.
    """
    rows = rows_of(kind)
    properties = {
        name: _property(name, schema, dialect, rows.get(name))
        for name, schema in component["properties"].items()
    }
    # Older clients of Ollama send the model's name as `name`.
    if dialect.model_required and "model" in properties and "name" not in properties:
        required = ("model", *required)
    for name in required:
        # A default of null means that the field is optional.
        if "default" in component["properties"][name]:
            properties[name] = _without_null(properties[name])
    body = {**component, "properties": properties}
    if required:
        body["required"] = list(required)
    return body


def _property(name: str, schema: Json, dialect: Dialect, row: Row | None) -> Json:
    """Returns the schema of a field. A default of null is left out, because it means that the field
    is absent."""
    schema = {key: value for key, value in schema.items() if key != "default"}
    if name in dialect.refuses_null:
        schema = _without_null(schema)
    if row is None:
        return schema
    if row.field.description:
        schema["description"] = row.field.description
    bounds = row.range_in(dialect.name)
    if bounds is None:
        return schema
    if "anyOf" not in schema:
        return _bounded(schema, bounds)
    choices = [_bounded(choice, bounds) for choice in schema["anyOf"]]
    if bounds.also is not None:
        choices.append({"const": bounds.also})
    return {**schema, "anyOf": choices}


def _without_null(schema: Json) -> Json:
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if not choices:
        return schema
    return choices[0] if len(choices) == 1 else {**schema, "anyOf": choices}


def _bounded(schema: Json, bounds: Range) -> Json:
    if schema.get("type") not in ("integer", "number"):
        return schema
    words = {
        "exclusiveMinimum" if bounds.low_open else "minimum": bounds.low,
        "exclusiveMaximum" if bounds.high_open else "maximum": bounds.high,
    }
    return {**schema, **{word: bound for word, bound in words.items() if bound is not None}}


_OPEN_PATHS: Final = frozenset({*HEALTH_PATHS, *DOCS_PATHS})
_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")

_REFUSALS: Final[Mapping[int, str]] = {
    400: "The request is malformed, or a field of it is at fault; `param` names it.",
    401: "A key is needed, or the one that came is not valid.",
    403: "A web page asks that may not use this server, or this is for operators only.",
    404: "There is no such model, response, conversation or item.",
    408: "The request did not arrive in time.",
    412: "The body is no JSON object, or its model or `stream` is at fault, as OVMS has it.",
    413: "The body is too large.",
    414: "The request line is too long.",
    415: "The Content-Type of the body is not JSON.",
    417: "The request expects something other than `100-continue`.",
    421: "The server is not known by the name that the request gives it.",
    429: "Too much waits already. `Retry-After` says when to come again.",
    426: "The path takes WebSocket connections only.",
    431: "The headers are too large.",
    500: "The server has failed.",
    501: "The body comes in a coding that is not supported.",
    503: "The server takes no requests now: a model loads, or it shuts down.",
    505: "The version of HTTP is none that is spoken here.",
}
_OF_LAYER: Final = (400, 401, 403, 408, 414, 417, 421, 431, 500, 501, 503, 505)
_OF_BODIES: Final = (413, 415, 429)
_WITH_HEADERS: Final[Mapping[int, str]] = {
    401: "WWW-Authenticate",
    429: "Retry-After",
    503: "Retry-After",
}


TAGS: Final = (
    "Text generation",
    "Messages",
    "Responses",
    "Conversations",
    "Embeddings",
    "Audio",
    "Images",
    "Decisions",
    "Files",
    "Batches",
    "Tokens",
    "Models",
    "Ollama",
    "Health and monitoring",
    "Documentation",
    "The page",
    "Extensions",
)
"""The sections that come first on the page, in order."""


def openapi_document(
    operations: Mapping[tuple[str, str], Operation],
    *,
    model: str,
    root_path: str = "",
    needs_key: bool = False,
) -> Json:
    """Returns the OpenAPI document.

    Args:
        operations: the described routes, by method and path pattern.
        model: the model's name in examples.
        root_path: the prefix of every path behind a proxy.
        needs_key: whether clients need an API key.
    """
    components = _Components()
    paths: dict[str, Json] = {}
    for (method, pattern), operation in operations.items():
        path = pattern.replace(":path}", "}")
        described = _operation(path, operation, method, model, components)
        paths.setdefault(path, {})[method.lower()] = {"tags": [operation.section], **described}
    used = {operation.section for operation in operations.values()}
    sections = [*filter(used.__contains__, TAGS), *sorted(used.difference(TAGS))]
    _link(paths)
    document: Json = {
        "openapi": "3.1.1",
        "info": {
            "title": "fastovms",
            "version": __version__,
            "description": "OpenAI-compatible LLM server for OpenVINO models. Paths below `/v1` "
            "speak OpenAI's dialect with vLLM's extra fields, those below `/v3` that of OpenVINO "
            "Model Server. Unknown fields are ignored.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": section} for section in sections],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.schemas.items())),
            "responses": dict(sorted(components.responses.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if needs_key:
        document["security"] = [{"key": []}]
    return document


class _Components:
    """The schemas and responses that the document refers to.

    Attributes:
        schemas: the schemas by type name.
        responses: the error responses, by dialect and status.
    """

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        self.responses: dict[str, Json] = {}
        self._known: dict[Any, Json] = {}

    def schema(self, kind: Any) -> Json:
        """Returns a reference to the schema of a type, or of the type with this name in
        `schemas`."""
        kind = named(kind)
        if kind not in self._known:
            self._known[kind], components = _schemas(kind)
            for component in components.values():
                _require_defaults(component)
            self.schemas |= components
        return self._known[kind]

    def body(self, operation: Operation, dialect: Dialect) -> Json:
        """Returns the schema of a request body, which depends on the dialect."""
        kind = operation.body
        if kind is None or not issubclass(kind, msgspec.Struct):
            return self.schema(kind)
        name = kind.__name__
        if dialect is not OPENAI:
            family = dialect.name.capitalize()
            name = family + name.removeprefix(family)
        if name not in self.schemas:
            _, components = _schemas(kind)
            component = components.pop(kind.__name__)
            self.schemas |= components
            self.schemas[name] = body_schema(kind, component, operation.required, dialect)
        return _reference("schemas", name)

    def refusal(self, status: int, dialect: Dialect) -> Json:
        """Returns the description of an error response with a status, in the dialect's format."""
        name = f"{dialect.name}_{status}"
        if name not in self.responses:
            schema = self.schema(dialect.error_form.kind)
            refusal: Json = {
                "description": _REFUSALS[status],
                "content": {"application/json": {"schema": schema}},
            }
            if header := _WITH_HEADERS.get(status):
                refusal["headers"] = {header: {"schema": {"type": "string"}}}
            self.responses[name] = refusal
        return _reference("responses", name)


def named(kind: Any) -> Any:
    """Returns a type, given the type itself or its name in `schemas`."""
    return getattr(schemas, kind) if isinstance(kind, str) else kind


def examples(operation: Operation) -> tuple[Requests, Answer | None]:
    """Returns the example request bodies of an operation, by title, and its example response (None
    = no example)."""
    if isinstance(operation.examples, str):
        return EXAMPLES[operation.examples]
    return operation.examples or {}, operation.answered


def _reference(section: str, name: str) -> Json:
    return {"$ref": f"#/components/{section}/{name}"}


def _schemas(kind: Any) -> tuple[Json, dict[str, Json]]:
    """Returns the schema of a type, and by name the schemas that it refers to. Descriptions are
    joined to one line."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    for component in components.values():
        component["description"] = " ".join(component.get("description", "").split())
    return schema, components


def _require_defaults(answer: Json) -> None:
    """Marks the members of a response that have a default as required, because they are always
    sent."""
    required = {*answer.get("required", ())}
    for name, schema in answer.get("properties", {}).items():
        if "default" in schema:
            del schema["default"]
            required.add(name)
    if required:
        answer["required"] = [name for name in answer["properties"] if name in required]


def _operation(
    path: str, operation: Operation, method: str, model: str, components: _Components
) -> Json:
    dialect = dialect_of(path)
    described: Json = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", path)]),
        "summary": operation.summary,
        "responses": {
            **_success(operation, components),
            **{str(status): components.refusal(status, dialect)
               for status in _statuses(path, operation, dialect)},
        },
    }  # fmt: skip
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    for name, kind in (operation.query or {}).items():
        parameters.append({"name": name, "in": "query", "schema": components.schema(kind)})
    if parameters:
        described["parameters"] = parameters
    if path in _OPEN_PATHS:
        described["security"] = []
    if operation.body is not None:
        content: Json = {"schema": components.body(operation, dialect)}
        if bodies := examples(operation)[0]:
            has_model = "model" in getattr(operation.body, "__struct_fields__", ())
            content["examples"] = {
                name: {"value": {"model": model, **body} if has_model else body}
                for name, body in bodies.items()
            }
        described["requestBody"] = {
            "required": True,
            "content": {operation.body_type: content},
        }
    return described


def _success(operation: Operation, components: _Components) -> Json:
    if operation.answer is None:
        return {}
    if operation.answer is EmptyAnswer:
        return {"200": {"description": "Yes."}}
    answer: Json = {"schema": components.schema(operation.answer)}
    if (answered := examples(operation)[1]) is not None:
        answer["example"] = answered
    content = {operation.media_type: answer}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(components.schema(operation.events))}
    if operation.lines is not None:
        content["application/x-ndjson"] = {"schema": components.schema(operation.lines)}
    return {"200": {"description": "The answer.", "content": content}}


def _event(data: Json) -> Json:
    """Returns the schema of one event of a stream, because OpenAPI 3.1 cannot describe a sequence
    of events. `data` is the schema of the JSON in each event except the last."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [text, {"const": "[DONE]"}]},
        },
        "required": ["data"],
    }


def _link(paths: Mapping[str, Json]) -> None:
    """Adds OpenAPI links from operations that create an object to those that take its id."""
    for path, operations in paths.items():
        below = f"{path}/{{id}}"
        if "post" not in operations or below not in paths:
            continue
        operations["post"]["responses"]["200"]["links"] = {
            operation["operationId"]: {
                "operationId": operation["operationId"],
                "parameters": {"id": "$response.body#/id"},
            }
            for other, methods in paths.items()
            if other == below or other.startswith(f"{below}/")
            for operation in methods.values()
        }


def _statuses(path: str, operation: Operation, dialect: Dialect) -> list[int]:
    """Returns the error statuses of an operation."""
    statuses = {*_OF_LAYER}
    if path in _OPEN_PATHS:
        statuses.remove(401)
    if operation.upgrades:
        statuses.add(426)
    elif _PARAMETER.search(path) or operation.answer is None:
        statuses.add(404)
    if dialect.body_level_fields.intersection(operation.query or ()):
        statuses.add(dialect.malformed_body_status)
    if operation.body is not None:
        statuses.update(_OF_BODIES)
        statuses.add(dialect.malformed_body_status)
        if "model" in getattr(operation.body, "__struct_fields__", ()):
            statuses.add(404)
    return sorted(statuses)
