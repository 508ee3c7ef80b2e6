"""Answers `POST /embeddings`: texts, or tokens of them, in, a vector for each out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import orjson

from fastovms.api.embeddings.embedding import EmbeddingOptions, Embeddings, embed
from fastovms.api.embeddings.embedding_schemas import EmbeddingRequest
from fastovms.api.embeddings.encoding_call import encoding_call
from fastovms.api.embeddings.encoding_options import (
    answer_id,
    check_priority,
    encoding_usage,
    read_limit,
)
from fastovms.api.embeddings.input_texts import InputText
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.prompting import offload
from fastovms.api.request.typed_body import read_encoder_body
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import EncodingFormat, GenerationKind

_FORMS: Final = (
    "input must be a string, a list of strings, a list of token ids or a list of such lists"
)
_CHOICES: Final = {
    "encoding_format": (None, "float", "base64"),
    "embed_dtype": (None, "float32"),
    "endianness": (None, "native", "little"),
}
"""The values that fields may have which are names."""


class EmbeddingsRoute:
    """The handler of `POST /embeddings`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request.

        Raises:
            RequestError, BackendError: there is no answer.
        """
        context = self._context
        body, model = await read_encoder_body(
            request,
            EmbeddingRequest,
            context.models,
            dialect,
            context.bodies,
            (Task.EMBEDDINGS,),
        )
        check_priority(body, dialect)
        _check_choices(body)
        texts = read_input(body, model.config.max_inputs)
        adds = body.add_special_tokens is not False
        limit = read_limit(body, model, model.texts.num_added if adds else 0)
        name = answer_id(body, "embd-", context.new_id())
        options = EmbeddingOptions(
            limit,
            body.use_activation,
            body.dimensions,
            adds,
            model.config.document_instruction,
            request.priority or 0,
        )
        names = input_names(texts, "input", is_list=_is_list(body))
        call = encoding_call(
            context,
            request,
            model,
            GenerationKind.EMBEDDINGS,
            body.model,
            response_id=name if dialect.has_ids else "",
            form=EncodingFormat(body.dimensions, body.encoding_format),
        )
        found = await embed(call, texts, names, options)
        head: dict[str, object] = {"object": "list"}
        if dialect.has_ids:
            head = {"id": name, **head, "created": int(context.unix_time())}
        head["model"] = model.info.name
        write = partial(write_embeddings, found, head, is_base64=body.encoding_format == "base64")
        return Response(200, await offload.run(write, found.vectors.size))


def write_embeddings(found: Embeddings, head: dict[str, object], *, is_base64: bool) -> bytes:
    """Returns the body of an answer. Vectors are written one by one, so that other threads are not
    kept from the GIL."""
    parts = [orjson.dumps(head)[:-1], b',"data":[']
    for index, vector in enumerate(np.ascontiguousarray(found.vectors)):
        value: object = b64encode(vector.tobytes()).decode() if is_base64 else vector
        entry = {"object": "embedding", "index": index, "embedding": value}
        parts += [b"," if index else b"", orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY)]
    parts += [b'],"usage":', orjson.dumps(encoding_usage(found.num_tokens)), b"}"]
    return b"".join(parts)


def read_input(body: EmbeddingRequest, max_inputs: int) -> Sequence[InputText]:
    """Returns the texts of a request.

    Raises:
        InvalidField: they are absent, too many or of mixed forms.
    """
    given = body.input
    if given is None:
        if body.messages is not None:
            raise InvalidField("messages cannot be embedded: send input", param="messages")
        raise InvalidField("input is required", param="input")
    if isinstance(given, str):
        return [given]
    forms = set(map(type, given))
    if forms == {int}:
        return [given]  # type: ignore[list-item]
    if len(forms) != 1:
        reason = "input must not be an empty list" if not forms else f"{_FORMS}, not a mixture"
        raise InvalidField(reason, param="input")
    if len(given) > max_inputs:
        raise InvalidField(
            f"input must have at most {max_inputs} entries, not {len(given)}", param="input"
        )
    return given  # type: ignore[return-value]


def input_names(texts: Sequence[object], name: str, *, is_list: bool) -> list[str]:
    """Returns how messages call each of a field's texts."""
    return [f"{name}[{position}]" for position in range(len(texts))] if is_list else [name]


def _is_list(body: EmbeddingRequest) -> bool:
    return isinstance(body.input, list) and not isinstance(body.input[0], int)


def _check_choices(body: EmbeddingRequest) -> None:
    for name, allowed in _CHOICES.items():
        value = getattr(body, name)
        if value not in allowed:
            words = " or ".join(f'"{each}"' for each in allowed if each is not None)
            raise InvalidField(f"{name} must be {words}, not {show(value)}", param=name)
