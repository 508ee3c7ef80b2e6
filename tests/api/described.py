"""Checks accepted requests and their answers against the OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import orjson

from fastovms.api.dialect import dialect_of
from fastovms.api.endpoint import EmptyAnswer, Operation
from fastovms.http.messages import Response
from fastovms.http.routing import Router
from fastovms.parts.openapi.document import named, openapi_document

_VALIDATORS: dict[tuple[str, str], jsonschema_rs.Validator] = {}


def _body_validator(name: tuple[str, str], operation: Operation) -> jsonschema_rs.Validator:
    if name not in _VALIDATORS:
        document = openapi_document({name: operation}, model="fake")
        [methods] = document["paths"].values()
        [described] = methods.values()
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        components = {**schema, "components": document["components"]}
        _VALIDATORS[name] = jsonschema_rs.validator_for(components)
    return _VALIDATORS[name]


def operation_of(router: Router, method: str, pattern: str) -> Operation:
    return router.operations[method, pattern.rstrip("/")]


def check_taken(router: Router, method: str, pattern: str, body: object) -> None:
    """Fails if an accepted body does not match the document."""
    operation = operation_of(router, method, pattern)
    if isinstance(body, dict) and operation.body is not None:
        _body_validator((method, pattern), operation).validate(body)


def check_answer(router: Router, method: str, pattern: str, response: Response) -> None:
    """Fails if the answer does not match the document."""
    operation = operation_of(router, method, pattern)
    if response.status != 200:
        dialect = dialect_of(pattern)
        read(response.body, dialect.error_form.kind)
    elif operation.answer is EmptyAnswer:
        assert response.body == b""
    elif response.content_type == "application/x-ndjson":
        for line in response.body.splitlines():
            read(line, operation.lines)
    elif operation.media_type == "application/json":
        assert response.content_type == operation.media_type
        read(response.body, operation.answer)
    else:
        assert response.content_type.startswith(operation.media_type)


def check_events(router: Router, method: str, pattern: str, events: list[Any]) -> None:
    """Fails if an event of a stream does not match the document."""
    error = dialect_of(pattern).error_form.kind
    for event in events:
        if event == "[DONE]":
            continue
        is_error = set(event) == {"error"} or (event.get("type") == "error" and "error" in event)
        operation = operation_of(router, method, pattern)
        read(orjson.dumps(event), error if is_error else operation.events or operation.lines)


def read(body: bytes, kind: Any) -> None:
    assert kind is not None, f"an answer that is not described: {body[:200]!r}"
    try:
        decoded = msgspec.json.decode(body, type=named(kind))
    except msgspec.ValidationError as error:
        raise AssertionError(f"{error}: {body[:2000]!r}") from None
    # A member with a default, which is always sent, may be missing for the decoder.
    assert orjson.loads(msgspec.json.encode(decoded)) == orjson.loads(body)
