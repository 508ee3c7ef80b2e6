"""Answers `POST /api/embed` and the older `/api/embeddings` as Ollama does."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson

from fastovms.api.embeddings.embedding import (
    EmbeddingOptions,
    Embeddings,
    default_limit,
    embed,
)
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.typed_body import read_encoder_body
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import ModelField
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response


class OllamaEmbedRequest(ModelField, frozen=True, kw_only=True):
    """The body of `POST /api/embed`. What says how a model is loaded changes nothing."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


class OllamaEmbeddingsRequest(ModelField, frozen=True, kw_only=True):
    """The body of `POST /api/embeddings`."""

    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


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
        began = now()
        body, model = await read_encoder_body(
            request, OllamaEmbedRequest, context.models, dialect, context.bodies, (Task.EMBEDDINGS,)
        )
        load_time = now() - began
        given = body.input or []
        is_list = isinstance(given, list)
        texts = given if isinstance(given, list) else [given]
        if len(texts) > model.config.max_inputs:
            raise InvalidField(
                f"input must have at most {model.config.max_inputs} entries, not {len(texts)}",
                param="input",
            )
        found = Embeddings(np.empty((0, 0), np.float32), 0)
        if texts:
            limit = default_limit(model, truncates=body.truncate is not False)
            options = EmbeddingOptions(limit, True, body.dimensions)
            names = [f"input[{index}]" for index in range(len(texts))] if is_list else ["input"]
            found = await embed(model, texts, names, options, request.sender)
        request.log_fields["prompt_tokens"] = found.num_tokens
        end = {
            "total_duration": round((now() - request.received_at) * 1e9),
            "load_duration": round(load_time * 1e9),
            "prompt_eval_count": found.num_tokens,
        }
        head = {"model": body.model}
        return Response(200, await asyncio.to_thread(_written, head, found, end))

    async def embeddings(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the vector of one prompt, as `embed` does."""
        context = self._context
        body, model = await read_encoder_body(
            request,
            OllamaEmbeddingsRequest,
            context.models,
            dialect,
            context.bodies,
            (Task.EMBEDDINGS,),
        )
        vector = np.empty(0, np.float32)
        if body.prompt:
            options = EmbeddingOptions(default_limit(model, truncates=True))
            found = await embed(model, [body.prompt], ["prompt"], options, request.sender)
            request.log_fields["prompt_tokens"] = found.num_tokens
            vector = np.ascontiguousarray(found.vectors[0])
        written = orjson.dumps({"embedding": vector}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(200, written)


def _written(head: dict[str, Any], found: Embeddings, end: dict[str, Any]) -> bytes:
    """Returns the body of an answer. Vectors are written one by one, so that other threads are not
    kept from the GIL."""
    rows = np.ascontiguousarray(found.vectors)
    vectors = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]
    start = orjson.dumps(head)[:-1] + b',"embeddings":['
    return start + b",".join(vectors) + b"]," + orjson.dumps(end)[1:]
