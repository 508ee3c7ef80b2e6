"""Answers `POST /api/embed` and the older `/api/embeddings` as Ollama does."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import numpy as np
import orjson

from fastovms.api.embeddings.embedding import (
    EmbeddingOptions,
    Embeddings,
    default_limit,
    embed,
)
from fastovms.api.embeddings.encoding_call import EncodingCall, encoding_call
from fastovms.api.embeddings.input_texts import TextLimit
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.ollama_values import OllamaOptions, option_values
from fastovms.api.request.prompting import offload
from fastovms.api.request.typed_body import hold_model, read_named
from fastovms.api.serving.keep_alive import departure
from fastovms.api.serving.served import KnownModel
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.api.wire.bodies.request_schemas import ModelField
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.warning_header import warning_headers
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import GenerationKind

_TASKS: Final = (Task.EMBEDDINGS,)


class OllamaEncoderFields(ModelField, frozen=True, kw_only=True):
    """The fields that both endpoints share. What `options` say is of texts that are generated;
    their values are checked all the same."""

    options: OllamaOptions | None = None
    keep_alive: str | int | float | None = None


class OllamaEmbedRequest(OllamaEncoderFields, frozen=True, kw_only=True):
    """The body of `POST /api/embed`."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaEncoderFields, frozen=True, kw_only=True):
    """The body of `POST /api/embeddings`."""

    prompt: str | None = None


class OllamaEmbed:
    """The handlers."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def embed(self, request: Request, dialect: Dialect) -> Response:
        """Answers with a vector of length 1 for each text. Longer texts are cut unless `truncate`
        is false.

        Raises:
            RequestError, BackendError: there is no answer.
        """
        context, now = self._context, asyncio.get_running_loop().time
        body, known = await read_named(
            request, OllamaEmbedRequest, context.models, dialect, context.bodies
        )
        option_values(body.options or OllamaOptions())
        with departure(body.keep_alive, request, known, context.models) as leaving:
            began = now()
            model = await self._hold(request, known)
            load_time = now() - began
            found = await _embedded(body, self._call(request, model, body.model))
        end = {
            "total_duration": round((now() - request.received_at) * 1e9),
            "load_duration": round(load_time * 1e9),
            "prompt_eval_count": found.num_tokens,
        }
        head = {"model": body.model}
        written = await offload.run(partial(_written, head, found, end), found.vectors.size)
        return Response(200, written, headers=warning_headers(leaving.warnings, request.id))

    async def embeddings(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the vector of one prompt, as the operator wants vectors. Raises as `embed`
        does."""
        context = self._context
        body, known = await read_named(
            request, OllamaEmbeddingsRequest, context.models, dialect, context.bodies
        )
        option_values(body.options or OllamaOptions())
        vector = np.empty(0, np.float32)
        with departure(body.keep_alive, request, known, context.models) as leaving:
            model = await self._hold(request, known)
            if body.prompt:
                options = _options(model, default_limit(model, truncates=True))
                call = self._call(request, model, body.model)
                found = await embed(call, [body.prompt], ["prompt"], options)
                vector = np.ascontiguousarray(found.vectors[0])
        written = orjson.dumps({"embedding": vector}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(200, written, headers=warning_headers(leaving.warnings, request.id))

    def _call(
        self, request: Request, model: ServedEncoder, asked_model: str | None
    ) -> EncodingCall:
        return encoding_call(self._context, request, model, GenerationKind.EMBEDDINGS, asked_model)

    async def _hold(self, request: Request, known: KnownModel) -> ServedEncoder:
        model = await hold_model(request, known, self._context.models, _TASKS, streams=False)
        assert isinstance(model, ServedEncoder)
        return model


async def _embedded(body: OllamaEmbedRequest, call: EncodingCall) -> Embeddings:
    """Returns the vectors of a request's texts, of which there may be none. Raises as `embed`."""
    model, given = call.model, body.input or []
    most = model.config.max_inputs
    is_list = isinstance(given, list)
    texts = given if isinstance(given, list) else [given]
    if len(texts) > most:
        raise InvalidField(
            f"input must have at most {most} entries, not {len(texts)}", param="input"
        )
    if not texts:
        return Embeddings(np.empty((0, 0), np.float32), 0)
    limit = default_limit(model, truncates=body.truncate is not False)
    options = _options(model, limit)._replace(normalizes=True, dimensions=body.dimensions)
    names = [f"input[{index}]" for index in range(len(texts))] if is_list else ["input"]
    return await embed(call, texts, names, options)


def _options(model: ServedEncoder, limit: TextLimit) -> EmbeddingOptions:
    return EmbeddingOptions(limit, instruction=model.config.document_instruction)


def _written(head: dict[str, Any], found: Embeddings, end: dict[str, Any]) -> bytes:
    """Returns the body of an answer. Vectors are written one by one, so that other threads are not
    kept from the GIL."""
    rows = np.ascontiguousarray(found.vectors)
    vectors = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]
    start = orjson.dumps(head)[:-1] + b',"embeddings":['
    return start + b",".join(vectors) + b"]," + orjson.dumps(end)[1:]
