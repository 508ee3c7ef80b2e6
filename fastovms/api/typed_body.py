"""Decodes a request's body and finds the model that it names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from fastovms.api.body import BodyReader
from fastovms.api.dialect import Dialect
from fastovms.api.request_schemas import GenerationFields, ModelField
from fastovms.api.served import AnyServed, KnownModel, ServedModels
from fastovms.api.unread import Members
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Request
from fastovms.params import Task


def place_of(text: str, body: msgspec.Struct) -> str | None:
    """Returns the path of the first value that contains the text, such as
    "messages[0].content[1].text"; None = no value contains it literally. Takes time proportional to
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


Body = TypeVar("Body", bound=ModelField | GenerationFields)

_PURPOSES: Final = {
    Task.TEXT_GENERATION: "generates text: it takes chats and completions",
    Task.EMBEDDINGS: "makes vectors of texts: it takes embeddings, rerank and score",
    Task.RERANK: "scores pairs of texts: it takes rerank and score",
    Task.SPEECH: "transcribes speech: it takes audio/transcriptions and audio/translations",
    Task.IMAGES: "generates images: it takes images/generations and images/edits",
    Task.SPEECH_OUT: "speaks texts: it takes audio/speech",
}
"""The tasks of each kind of model, for messages about a model of another kind."""


TEXT_TASKS: Final = (Task.TEXT_GENERATION, Task.EMBEDDINGS, Task.RERANK)
"""The tasks of models that take texts."""


class _Outline(ModelField, frozen=True, kw_only=True):
    """The fields of an invalid body that are logged."""

    MEMBERS: ClassVar[Members | None] = None

    stream: Any = None


async def read_named(
    request: Request,
    schema: type[Body],
    models: ServedModels,
    dialect: Dialect,
    reader: BodyReader,
) -> tuple[Body, KnownModel]:
    """Returns the typed body and the model that it names, and records the model for logs and
    metrics. The model need not be loaded. Raises RequestError if a field is invalid. If a model
    name is required, its error takes precedence over other fields' errors."""
    try:
        body = await reader.read(request, schema)
    except InvalidField:
        await _note_outline(request, models, dialect, reader)
        raise
    model = models.find(body.model, dialect)
    request.log_fields["model"] = model.name
    return body, model


def find_of_task(
    name: str | None, task: Task, models: ServedModels, dialect: Dialect
) -> KnownModel:
    """Returns the model that a request names, or the first model of the task if it names none.
    Raises errors like `ServedModels.find`."""
    if not name and not dialect.model_required:
        for known in models.known:
            if known.task is task:
                return known
    return models.find(name or None, dialect)


def check_task(model: KnownModel, tasks: Collection[Task]) -> None:
    """Raises InvalidField for a model whose task is not in `tasks`."""
    if model.task not in tasks:
        raise InvalidField(
            f"the model {model.name} cannot be used here: it {_PURPOSES[model.task]}",
            param="model",
        )


async def read_any_body(
    request: Request,
    schema: type[Body],
    models: ServedModels,
    dialect: Dialect,
    reader: BodyReader,
    tasks: Collection[Task] = TEXT_TASKS,
) -> tuple[Body, AnyServed]:
    """Returns the typed body and the loaded model that it names, like `ApiContext.read`, for a
    model of one of the tasks."""
    body, model = await read_named(request, schema, models, dialect, reader)
    # Some requests, such as `/tokenize`, do not have the field.
    streams = getattr(body, "stream", None) is True
    return body, await hold_model(request, model, models, tasks, streams=streams)


async def hold_model(
    request: Request,
    model: KnownModel,
    models: ServedModels,
    tasks: Collection[Task],
    *,
    streams: bool,
) -> AnyServed:
    """Returns the loaded model, which stays in memory until the request ends. Raises BackendError
    if the model cannot be loaded now, and InvalidField if the model has another task.

    Args:
        tasks: the allowed tasks of the model.
        streams: whether to send SSE comments while the model is loaded.
    """
    served = try_model(request, model, models, tasks)
    if served is not None:
        return served
    if streams:
        request.open_early()
    assert models.holder is not None
    request.release_at_end(await models.holder.acquire(model.resident, request.sender))
    return loaded_model(model, tasks)


def try_model(
    request: Request, model: KnownModel, models: ServedModels, tasks: Collection[Task]
) -> AnyServed | None:
    """Like `hold_model`, but returns None if the model is not loaded. Raises InvalidField if the
    model has another task. `tasks` are the allowed tasks of the model."""
    check_task(model, tasks)
    holder = models.holder
    if holder is not None:
        release = holder.try_acquire(model.resident)
        if release is None:
            return None
        request.release_at_end(release)
    return loaded_model(model, tasks)


def loaded_model(model: KnownModel, tasks: Collection[Task]) -> AnyServed:
    """Returns a model in memory. Raises InvalidField like `check_task`, because the task may be
    unknown before loading, and BackendUnavailable like `KnownModel.refreshed`."""
    model = model.refreshed()
    check_task(model, tasks)
    assert model.served is not None
    return model.served


async def _note_outline(
    request: Request, models: ServedModels, dialect: Dialect, reader: BodyReader
) -> None:
    """Records the model and user of a request whose body is invalid. Raises RequestError if the
    required model name is invalid."""
    try:
        outline = await reader.read(request, _Outline)
        model = models.find(outline.model, dialect)
    except RequestError:
        if dialect.model_required:
            raise
        return
    request.log_fields["model"] = model.name
    request.log_fields["stream"] = outline.stream is True
