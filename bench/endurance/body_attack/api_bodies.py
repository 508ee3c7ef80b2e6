"""Builds the requests of the `bodies` test: every endpoint that reads a body, with fields of the
types that the server declares.

A seed and an index determine each request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from bench.endurance.body_attack.api_values import FIELDS, GRAMMAR_FIELDS, value_of
from bench.endurance.body_attack.body_mutations import any_json, change, change_text, encode
from fastovms.api.dialect import DIALECTS, OVMS
from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.api.tokenize import DetokenizeRequest, OvmsTokenizeRequest, TokenizeRequest
from fastovms.parts.adapters.endpoints import LoadAdapterRequest, UnloadAdapterRequest
from fastovms.parts.decisions import DecisionsRequest
from fastovms.parts.embeddings.embeddings import EmbeddingRequest, RerankRequest, ScoreRequest
from fastovms.parts.images.request import ImageFields
from fastovms.parts.messages.request import CountTokensRequest, MessagesRequest
from fastovms.parts.ollama.models import OllamaEmbeddingsRequest, OllamaEmbedRequest
from fastovms.parts.ollama.request import OllamaChatRequest, OllamaGenerateRequest
from fastovms.parts.responses.request import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
    ResponsesRequest,
)
from fastovms.parts.speech_out.endpoints import SpeechFields

_UNCHANGED: Final = 0.04
_CHANGED_TEXT: Final = 0.15
_ANYTHING: Final = 0.03
_WITH_GRAMMAR: Final = 0.06


class Endpoint(NamedTuple):
    """An endpoint, below every path prefix of its dialect.

    Attributes:
        fields: the types of the fields by name.
        needed: the fields that a body always has before it is mutated.
        weight: the relative frequency of the endpoint.
    """

    path: str
    fields: Mapping[str, msgspec.inspect.Type]
    needed: tuple[str, ...] = ()
    weight: int = 1


def _endpoint(path: str, struct: type[msgspec.Struct], *needed: str, weight: int = 1) -> Endpoint:
    described = msgspec.inspect.type_info(struct)
    assert isinstance(described, msgspec.inspect.StructType)
    fields = {field.encode_name: field.type for field in described.fields}
    return Endpoint(path, fields, needed, weight)


ENDPOINTS: Final = (
    _endpoint("/completions", CompletionRequest, "model", "prompt", "max_tokens", weight=6),
    _endpoint("/chat/completions", ChatRequest, "model", "messages", "max_tokens", weight=8),
    _endpoint("/responses", ResponsesRequest, "model", "input", "max_output_tokens", weight=6),
    _endpoint("/responses/input_tokens", ResponsesRequest, "model", "input"),
    _endpoint("/responses/compact", ResponsesRequest, "model", "input"),
    _endpoint("/responses/{id}/cancel", ConversationUpdate),
    _endpoint("/conversations", ConversationRequest, weight=2),
    _endpoint("/conversations/{id}", ConversationUpdate, "metadata"),
    _endpoint("/conversations/{id}/items", ItemsRequest, "items", weight=2),
    _endpoint("/detokenize", DetokenizeRequest, "model", "tokens"),
    _endpoint("/embeddings", EmbeddingRequest, "model", "input"),
    _endpoint("/embeddings", EmbeddingRequest, "model", "messages"),
    _endpoint("/rerank", RerankRequest, "model", "query", "documents"),
    _endpoint("/score", ScoreRequest, "model"),
    _endpoint("/audio/speech", SpeechFields, "model", "input"),
    _endpoint("/images/generations", ImageFields, "model", "prompt"),
    # These take forms only, and refuse the rest by the headers.
    _endpoint("/audio/transcriptions", ConversationUpdate),
    _endpoint("/audio/translations", ConversationUpdate),
    _endpoint("/images/edits", ConversationUpdate),
    # The model does not exist, so that the attack does not unload its own.
    _endpoint("/models/other/load", ConversationUpdate),
    _endpoint("/models/other/unload", ConversationUpdate),
)
"""The endpoints of both dialects."""

_TOKENIZE: Final = _endpoint("/tokenize", TokenizeRequest, "prompt", weight=2)
_OVMS_TOKENIZE: Final = _endpoint("/tokenize", OvmsTokenizeRequest, "model", "text", weight=2)
NO_PREFIX: Final = (
    _TOKENIZE,
    _endpoint("/detokenize", DetokenizeRequest, "tokens"),
    _endpoint("/v1/config/reload", ConversationUpdate),
    _endpoint("/v1/work/{id}/cancel", ConversationUpdate),
    _endpoint("/v1/load_lora_adapter", LoadAdapterRequest, "lora_name", "lora_path"),
    _endpoint("/v1/unload_lora_adapter", UnloadAdapterRequest, "lora_name"),
    _endpoint("/ping", ConversationUpdate),
    _endpoint("/v2/models/demo_model/infer", ConversationUpdate),
    _endpoint("/v2/models/demo_model/versions/1/infer", ConversationUpdate),
    _endpoint("/rerank", RerankRequest, "model", "query", "documents"),
    _endpoint("/v2/rerank", RerankRequest, "model", "query", "documents"),
    _endpoint("/score", ScoreRequest, "model"),
    _endpoint("/v1/decisions", DecisionsRequest, "model", "input", "questions", weight=2),
    _endpoint("/v1/messages", MessagesRequest, "model", "messages", "max_tokens", weight=6),
    _endpoint("/v1/messages/count_tokens", CountTokensRequest, "model", "messages", weight=2),
    _endpoint("/api/chat", OllamaChatRequest, "model", "messages", "options", weight=4),
    _endpoint("/api/generate", OllamaGenerateRequest, "model", "prompt", "options", weight=4),
    _endpoint("/api/embed", OllamaEmbedRequest, "model", "input"),
    _endpoint("/api/embeddings", OllamaEmbeddingsRequest, "model", "prompt"),
    *(
        _endpoint(f"/api/{name}", ConversationUpdate)
        for name in ("show", "pull", "push", "create", "copy", "blobs/sha256:0")
    ),
)
"""The endpoints without a prefix."""


class BodyRequest(NamedTuple):
    """A request. `path` may contain `{id}`, which is replaced with the id of a stored object."""

    path: str
    body: bytes


def all_endpoints() -> list[Endpoint]:
    """Returns every endpoint of every dialect with its whole path."""
    found = list(NO_PREFIX)
    for dialect in DIALECTS:
        tokenize = _OVMS_TOKENIZE if dialect is OVMS else _TOKENIZE
        for prefix in dialect.prefixes:
            found += [each._replace(path=prefix + each.path) for each in (*ENDPOINTS, tokenize)]
    return found


class Bodies:
    """Builds the request for an index."""

    def __init__(self, seed: int, endpoints: Sequence[Endpoint]) -> None:
        self._seed = seed
        self._endpoints = endpoints
        self._weights = [endpoint.weight for endpoint in endpoints]

    def make(self, index: int) -> BodyRequest:
        rng = Random(self._seed << 40 | index)
        [endpoint] = rng.choices(self._endpoints, self._weights)
        if rng.random() < _ANYTHING:
            return BodyRequest(endpoint.path, encode(any_json(rng)))
        body = _valid(endpoint, rng)
        if rng.random() >= _UNCHANGED:
            change(body, rng)
        data = encode(body)
        if rng.random() < _CHANGED_TEXT:
            data = change_text(data, rng)
        return BodyRequest(endpoint.path, data)


def _valid(endpoint: Endpoint, rng: Random) -> dict[str, Any]:
    """Returns a body that is probably valid, with some of the optional fields."""
    names = [
        *endpoint.needed,
        *rng.sample(
            sorted(endpoint.fields), min(rng.choice((0, 1, 2, 3, 6)), len(endpoint.fields))
        ),
    ]
    if GRAMMAR_FIELDS.intersection(names) and rng.random() >= _WITH_GRAMMAR * 4:
        names = [name for name in names if name not in GRAMMAR_FIELDS]
    body = {name: value_of(name, endpoint.fields[name], rng) for name in names}
    if "text" in body and "input" in body:
        body["text"] = FIELDS["text.format"](rng)
    return body
