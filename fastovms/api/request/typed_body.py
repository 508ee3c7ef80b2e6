"""Reads a request's body as a typed struct, with the model that it is for."""

from __future__ import annotations

from typing import Any, TypeVar

from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.body_reader import BodyReader
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import ModelField
from fastovms.errors import InvalidField, RequestError
from fastovms.http.routing.messages import Request

Body = TypeVar("Body", bound=ModelField)


class _Outline(ModelField, frozen=True, kw_only=True):
    """The fields that are noted of a body that is at fault."""

    stream: Any = None


async def read_body(
    request: Request,
    schema: type[Body],
    models: ServedModels,
    dialect: Dialect,
    reader: BodyReader,
) -> tuple[Body, ServedModel]:
    """Returns the typed body and the model that it names, which is noted for logs and metrics.

    Raises:
        RequestError: a field is at fault. Where a model must be named, its fault goes before those
            of the other fields.
    """
    try:
        body = await reader.read(request, schema)
    except InvalidField:
        await _note_outline(request, models, dialect, reader)
        raise
    model = models.find(body.model, dialect)
    request.log_fields["model"] = model.info.name
    return body, model


async def _note_outline(
    request: Request, models: ServedModels, dialect: Dialect, reader: BodyReader
) -> None:
    """Notes whose request it is that fails. Raises RequestError for the fault of a model that must
    be named."""
    try:
        outline = await reader.read(request, _Outline)
        model = models.find(outline.model, dialect)
    except RequestError:
        if dialect.model_required:
            raise
        return
    request.log_fields["model"] = model.info.name
    request.log_fields["stream"] = outline.stream is True
