"""Ollama's endpoints for models and embeddings."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fastovms.api import offload
from fastovms.api.context import ApiContext, ContextHandlers
from fastovms.api.dialect import OLLAMA, AnswerSchema, Dialect, or_unset
from fastovms.api.endpoint import (
    ApiHandler,
    Operation,
    Route,
    endpoint,
    json_response,
    warning_headers,
)
from fastovms.api.request_schemas import ModelField
from fastovms.api.served import KnownModel, ServedModel
from fastovms.api.typed_body import hold_model, read_named
from fastovms.errors import InvalidField, ModelNotFound, RequestError
from fastovms.http.messages import Handler, Request, Response
from fastovms.params import ModelInfo, SamplingDefaults, Task
from fastovms.parts.embeddings.embeddings import (
    EmbeddingOptions,
    Embeddings,
    EncodingCall,
    TextLimit,
    default_limit,
    embed,
    encode_vectors,
    encoding_call,
    input_names,
)
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.parts.ollama.generation import JSON_LINES, OllamaGeneration, nanoseconds, timestamp
from fastovms.parts.ollama.request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNamed,
    OllamaOptions,
    option_values,
)
from fastovms.parts.several_models.model_pool import unload_outcome
from fastovms.request_fields import rows_by_name
from fastovms.telemetry.tracing import GenerationKind

FORMAT: Final = "openvino"
_FOR_EVER: Final = 100 * 365 * 24 * 3600.0
"""Seconds that are reported as the time until an unload for a model that is never unloaded, because
Ollama's clients require a time."""

_WORDS: Final = ("completion", "tools", "insert", "vision", "thinking", "embedding")
"""The capabilities that Ollama's clients know."""

_PURPOSES: Final = {Task.TEXT_GENERATION: ("completion",), Task.EMBEDDINGS: ("embedding",)}
"""The capabilities by a model's task, known before the model is loaded."""

_CONFIG_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "rope.freq_base": ("rope_theta",),
    "vocab_size": ("vocab_size",),
}
"""The keys in config.json for the members that Ollama's clients read."""

_INTEGER: Final = re.compile(r"[iu](\d+)")


class OllamaDetails(AnswerSchema, kw_only=True):
    """The format, family and size of a model."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(AnswerSchema, kw_only=True):
    """A model in a list. `size` is the bytes of its weight files; in `/api/ps`, of its memory."""

    name: str
    model: str
    modified_at: str | UnsetType = UNSET
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class OllamaModelList(AnswerSchema):
    """A list of models."""

    models: list[OllamaModel]


class OllamaModelCard(AnswerSchema, kw_only=True):
    """The full description of one model."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


def list_card(model: KnownModel, name: str) -> OllamaModel:
    """Returns a model's entry in lists, under one of its names."""
    return OllamaModel(
        name=name,
        model=name,
        modified_at=timestamp(model.created),
        size=model.file_size,
        digest=_digest(model),
        details=_details(model),
    )


def running_card(model: KnownModel, now: float, seconds_left: float | None) -> OllamaModel:
    """Returns a loaded model's entry in `/api/ps`.

    Args:
        seconds_left: the seconds until the model is unloaded if there are no requests; None =
            never.
    """
    expires_at = now + (_FOR_EVER if seconds_left is None else seconds_left)
    return replace(
        list_card(model, model.name),
        modified_at=UNSET,
        size=model.memory,
        expires_at=timestamp(expires_at),
        size_vram=0,
        context_length=or_unset(model.max_model_len),
    )


def full_card(model: KnownModel, *, fills_in: bool) -> OllamaModelCard:
    """Returns the full description of a model. `fills_in` is whether the model supports
    fill-in-the-middle."""
    info, served = model.info, model.served
    template = served.chat.template if isinstance(served, ServedModel) else None
    capabilities = {*_PURPOSES.get(model.task, ()), *(model.capabilities or ())}
    if fills_in:
        capabilities.add("insert")
    return OllamaModelCard(
        modelfile=f"FROM {model.name}\n",
        parameters="" if info is None else _parameters(info),
        template="" if template is None else template.source,
        details=_details(model),
        model_info=_model_info(model),
        capabilities=[word for word in _WORDS if word in capabilities],
        modified_at=timestamp(model.created),
    )


def _config(model: KnownModel) -> Mapping[str, object]:
    return {} if model.info is None else model.info.config


def _family(model: KnownModel) -> str:
    """Returns the `model_type` in config.json; "" = the file is not read yet."""
    return str(_config(model).get("model_type") or "")


def _details(model: KnownModel) -> OllamaDetails:
    family, info = _family(model), model.info
    weights = None if info is None else info.weights
    return OllamaDetails(
        format=FORMAT,
        family=family,
        families=[family] if family else [],
        parameter_size="" if weights is None else _short(weights.num_parameters),
        quantization_level="" if weights is None else _level(weights.element_type),
    )


def _model_info(model: KnownModel) -> dict[str, Any]:
    family, config, info = _family(model) or FORMAT, _config(model), model.info
    inner = config.get("text_config")
    scopes = [config, inner] if isinstance(inner, Mapping) else [config]
    general: dict[str, Any] = {"general.architecture": family, "general.basename": model.name}
    if info is not None and info.weights is not None:
        general["general.parameter_count"] = info.weights.num_parameters
    numbers = {key: _first(scopes, names) for key, names in _CONFIG_KEYS.items()}
    numbers = {"context_length": model.max_model_len, **numbers}
    known = {f"{family}.{key}": value for key, value in numbers.items() if value is not None}
    return {**general, **known}


def _first(scopes: Sequence[Mapping[str, object]], names: Sequence[str]) -> object:
    """Returns the first number in `scopes` under one of the names; None = not found."""
    found = (scope.get(name) for name in names for scope in scopes)
    return next((value for value in found if type(value) in (int, float)), None)


def _short(count: int) -> str:
    """Returns a number of parameters in Ollama's format, such as 7.6B or 134.52M."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 2)):
        if count >= unit:
            return f"{count / unit:.{digits}f}{letter}"
    return str(count)


def _level(element_type: str) -> str:
    """Returns the format of the stored weights as named by OpenVINO's tools, such as INT4 or
    F16."""
    integer = _INTEGER.fullmatch(element_type)
    return f"INT{integer[1]}" if integer else element_type.upper()


def _parameters(info: ModelInfo) -> str:
    """Returns the model's default sampling parameters in Ollama's format, one per line."""
    defaults = info.defaults
    rows = rows_by_name(SamplingDefaults, "ollama")
    values = {option: getattr(defaults, row.name) for option, row in rows.items()}
    lines = (f"{name:<30} {value}" for name, value in values.items() if value is not None)
    return "\n".join(lines)


def _digest(model: KnownModel) -> str:
    """Returns a digest of a model's files, or of the model's name if the files are not read yet."""
    return hashlib.sha256((model.fingerprint or model.name).encode()).hexdigest()


OLLAMA_VERSION: Final = "0.12.11"
"""The version of Ollama whose API is implemented; some clients require a minimum version."""


class OllamaVersion(AnswerSchema):
    """The version of Ollama's API."""

    version: str


class OllamaStatus(AnswerSchema):
    """The progress of a download."""

    status: str


class OllamaModels(ContextHandlers):
    """The handlers of the endpoints for models."""

    def version(self, request: Request) -> Response:
        """Returns the implemented version of Ollama's API."""
        return json_response(OllamaVersion(OLLAMA_VERSION))

    def tags(self, request: Request) -> Response:
        """Lists the models, under all of their names."""
        known = self._context.models.named
        cards = [list_card(model, name) for model in known for name in model.names]
        return json_response(OllamaModelList(cards))

    def ps(self, request: Request) -> Response:
        """Lists the models in memory."""
        now, holder = self._context.unix_time(), self._context.models.holder
        cards = []
        for model in self._context.models.named:
            if model.served is not None:
                seconds = None if holder is None else holder.seconds_to_unload(model.resident)
                cards.append(running_card(model, now, seconds))
        return json_response(OllamaModelList(cards))

    async def show(self, request: Request, dialect: Dialect) -> Response:
        """Returns the description of one model. Raises RequestError if the model is unknown or the
        body is malformed."""
        _, model = await self._find(request, dialect)
        served = model.served
        fills_in = isinstance(served, ServedModel) and served.tokenizer.fim_tokens is not None
        return json_response(full_card(model, fills_in=fills_in))

    async def pull(self, request: Request, dialect: Dialect) -> Response:
        """Reports success if the model is already served; downloads nothing. Raises as `show`
        does."""
        try:
            body, _ = await self._find(request, dialect)
        except ModelNotFound as error:
            raise ModelNotFound(
                f"{error.message}; it cannot be downloaded here, because this server has only "
                "the models that it was started with",
                param=error.param,
            ) from None
        done = OllamaStatus("success")
        if body.stream is False:
            return json_response(done)
        lines = msgspec.json.Encoder().encode_lines([OllamaStatus("pulling manifest"), done])
        return Response(200, lines, JSON_LINES)

    async def refuse(self, request: Request, dialect: Dialect) -> Response:
        """Raises RequestError for requests that would create, copy or delete models."""
        what = request.path.removeprefix("/api/").partition("/")[0]
        raise RequestError(
            f"{what} is not supported: this server has the models that it was started with"
        )

    async def _find(self, request: Request, dialect: Dialect) -> tuple[OllamaNamed, KnownModel]:
        body = await self._context.bodies.read(request, OllamaNamed)
        return body, self._context.models.find(body.model or body.name, dialect)


_TASKS: Final = (Task.EMBEDDINGS,)


class OllamaEncoderFields(ModelField, frozen=True, kw_only=True):
    """The fields of both embedding endpoints. The `options` have no effect on embeddings, but their
    values are checked."""

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


class OllamaVectors(AnswerSchema, kw_only=True):
    """The response of `POST /api/embed`."""

    model: str
    embeddings: Sequence[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(AnswerSchema):
    """The response of `POST /api/embeddings`."""

    embedding: list[float]


class OllamaEmbed(ContextHandlers):
    """The handlers of the embedding endpoints."""

    async def embed(self, request: Request, dialect: Dialect) -> Response:
        """Returns a vector of length 1 for each text. Texts that are too long are truncated unless
        `truncate` is false. Raises RequestError or BackendError if the request fails."""
        context, now = self._context, asyncio.get_running_loop().time
        body, known = await read_named(
            request, OllamaEmbedRequest, context.models, dialect, context.bodies
        )
        option_values(body.options or OllamaOptions())
        with unload_outcome(body.keep_alive, request, known, context.models) as leaving:
            began = now()
            model = await self._hold(request, known)
            load_time = now() - began
            found = await _embedded(body, self._call(request, model, body.model))
        answer = OllamaVectors(
            model=body.model or "",
            embeddings=[*np.ascontiguousarray(found.vectors)],
            total_duration=nanoseconds(now() - request.received_at),
            load_duration=nanoseconds(load_time),
            prompt_eval_count=found.num_tokens,
        )
        written = await offload.run(partial(encode_vectors, answer), found.vectors.size)
        return Response(200, written, headers=warning_headers(leaving.warnings, request))

    async def embeddings(self, request: Request, dialect: Dialect) -> Response:
        """Returns the vector of one prompt, scaled as the operator configured. Raises as `embed`
        does."""
        context = self._context
        body, known = await read_named(
            request, OllamaEmbeddingsRequest, context.models, dialect, context.bodies
        )
        option_values(body.options or OllamaOptions())
        vector: Any = []
        with unload_outcome(body.keep_alive, request, known, context.models) as leaving:
            model = await self._hold(request, known)
            if body.prompt:
                options = _options(model, default_limit(model, truncates=True))
                call = self._call(request, model, body.model)
                found = await embed(call, [body.prompt], ["prompt"], options)
                vector = np.ascontiguousarray(found.vectors[0])
        written = encode_vectors(OllamaVector(vector))
        return Response(200, written, headers=warning_headers(leaving.warnings, request))

    def _call(
        self, request: Request, model: ServedEncoder, asked_model: str | None
    ) -> EncodingCall:
        return encoding_call(self._context, request, model, GenerationKind.EMBEDDINGS, asked_model)

    async def _hold(self, request: Request, known: KnownModel) -> ServedEncoder:
        model = await hold_model(request, known, self._context.models, _TASKS, streams=False)
        assert isinstance(model, ServedEncoder)
        return model


async def _embedded(body: OllamaEmbedRequest, call: EncodingCall) -> Embeddings:
    """Returns the vectors of a request's texts, of which there may be none. Raises as `embed`
    does."""
    model, given = call.model, body.input or []
    most = model.config.max_inputs
    texts = given if isinstance(given, list) else [given]
    if len(texts) > most:
        raise InvalidField.about("input", f"must have at most {most} entries, not {len(texts)}")
    if not texts:
        return Embeddings(np.empty((0, 0), np.float32), 0)
    limit = default_limit(model, truncates=body.truncate is not False)
    options = _options(model, limit)._replace(normalizes=True, dimensions=body.dimensions)
    names = input_names(texts, "input", is_list=isinstance(given, list))
    return await embed(call, texts, names, options)


def _options(model: ServedEncoder, limit: TextLimit) -> EmbeddingOptions:
    return EmbeddingOptions(limit, instruction=model.config.document_instruction)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of Ollama's API."""
    generation, models, encoding = (
        OllamaGeneration(context),
        OllamaModels(context),
        OllamaEmbed(context),
    )

    def route(name: str, handler: Handler, summary: str, answer: Any = None, **more: Any) -> Route:
        method, _, path = name.partition(" ")
        return Route(method, f"/api/{path}", handler, Operation(summary, answer, "Ollama", **more))

    def dialect(handler: ApiHandler) -> Handler:
        return endpoint(handler, OLLAMA)

    yield route(
        "GET version",
        models.version,
        "Returns the version of Ollama whose API this is.",
        OllamaVersion,
        examples="Ollama's version",
    )
    yield route(
        "GET tags",
        models.tags,
        "Lists the models, under all of their names.",
        OllamaModelList,
        examples="Ollama's models",
    )
    yield route("GET ps", models.ps, "Lists the models in memory.", OllamaModelList)
    yield route(
        "POST chat",
        dialect(generation.chat),
        "Answers messages as Ollama does: as lines of JSON, or whole where `stream` is false.",
        "OllamaChatAnswer",
        body=OllamaChatRequest,
        lines="OllamaChatAnswer",
        examples="Ollama's chat",
    )
    yield route(
        "POST generate",
        dialect(generation.generate),
        "Answers a prompt as Ollama does, or continues it where `raw` is true.",
        "OllamaGenerateAnswer",
        body=OllamaGenerateRequest,
        lines="OllamaGenerateAnswer",
        examples="Ollama's texts",
    )
    yield route(
        "POST embed",
        dialect(encoding.embed),
        "Returns a vector for each text, as Ollama does.",
        OllamaVectors,
        body=OllamaEmbedRequest,
    )
    yield route(
        "POST embeddings",
        dialect(encoding.embeddings),
        "Returns the vector of one prompt, for older clients of Ollama.",
        OllamaVector,
        body=OllamaEmbeddingsRequest,
    )
    yield route(
        "POST show",
        dialect(models.show),
        "Describes one model: its template, its context and what it can do.",
        OllamaModelCard,
        body=OllamaNamed,
        examples="Ollama's model",
    )
    yield route(
        "POST pull",
        dialect(models.pull),
        "Says of a model that is served that it is there: none is fetched.",
        OllamaStatus,
        body=OllamaNamed,
        lines=OllamaStatus,
        examples="Ollama's download",
    )
    refuse = dialect(models.refuse)
    yield route("POST push", refuse, "Refuses to send models elsewhere.")
    yield route("POST create", refuse, "Refuses to make models.")
    yield route("POST copy", refuse, "Refuses to copy models.")
    yield route("DELETE delete", refuse, "Refuses to delete models.")
    yield route("POST blobs/{digest}", refuse, "Refuses files of models.")
