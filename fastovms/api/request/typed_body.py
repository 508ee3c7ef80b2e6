"""Reads a request's body as a typed struct, with the model that it is for."""

from __future__ import annotations

from typing import Any, TypeVar

from fastovms.api.serving.served import KnownModel, ServedModel, ServedModels
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
    """Returns the typed body and the model that it names, which is noted for logs and metrics. The
    request holds the model to its end. Where the model must be loaded first, a client that wants a
    stream gets comments meanwhile.

    Raises:
        BackendError: the model cannot be loaded now.
        RequestError: a field is at fault. Where a model must be named, its fault goes before those
            of the other fields.
    """
    try:
        body = await reader.read(request, schema)
    except InvalidField:
        await _note_outline(request, models, dialect, reader)
        raise
    model = models.find(body.model, dialect)
    request.log_fields["model"] = model.name
    # Not every request has that field: `/tokenize` has none.
    streams = getattr(body, "stream", None) is True
    return body, await _hold(request, model, models, streams=streams)


async def _hold(
    request: Request, model: KnownModel, models: ServedModels, *, streams: bool
) -> ServedModel:
    holder = models.holder
    if holder is not None:
        release = holder.try_hold(model.name)
        if release is None:
            if streams:
                request.open_early()
            release = await holder.hold(model.name)
        request.hold(release)
    assert model.served is not None
    return model.served


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
    request.log_fields["model"] = model.name
    request.log_fields["stream"] = outline.stream is True
