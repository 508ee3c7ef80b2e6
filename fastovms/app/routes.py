"""Adds every route to the router: the table of endpoints and their handlers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal

from fastovms.api.admin import (
    CancelledWork,
    HealthRoutes,
    ModelCard,
    ModelList,
    ModelMetadata,
    ModelRoutes,
    Reload,
    ServableRoutes,
    ServerConfigStatus,
    ServerMetadata,
    VersionAnswer,
    WorkList,
    WorkRoutes,
    WorkSource,
)
from fastovms.api.chat import ChatCompletion, ChatCompletionChunk, ChatCompletions
from fastovms.api.completions import Completion, CompletionChunk, Completions
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, OPENAI
from fastovms.api.endpoint import PAGE_QUERY, EmptyAnswer, Operation, Route, endpoint
from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.app.parts import Parts
from fastovms.errors import ConfigurationError
from fastovms.extensions import Extension, faults_named
from fastovms.http.routing import Router

_COMPLETIONS: Final = Operation(
    "Continues one or many prompts, given as text or as token ids, whole or as a stream; takes "
    "every field of OpenAI, vLLM and OVMS.",
    Completion,
    "Text generation",
    body=CompletionRequest,
    required=("prompt",),
    events=CompletionChunk,
    examples="completions",
)
_CHATS: Final = Operation(
    "Answers messages through the model's template, whole or as a stream; with tools, reasoning "
    "and structured answers.",
    ChatCompletion,
    "Text generation",
    body=ChatRequest,
    required=("messages",),
    events=ChatCompletionChunk,
    examples="chats",
)
_model_operation = partial(Operation, section="Models")
_LIST: Final = _model_operation(
    "Lists the models, below `/v1` with their `max_model_len`.", ModelList, examples="models"
)
_GET: Final = _model_operation("Describes one model as the list does.", ModelCard)
_LOAD: Final = _model_operation(
    "Loads a model, for operators, and answers when it is in memory.", ModelCard
)
_UNLOAD: Final = _model_operation(
    "Unloads a model when the requests on it have ended, for operators.", ModelCard
)
_KIND: Final = {"kind": Literal["request", "response", "batch"], "key": str}
_WORK: Final = _model_operation(
    "Lists, for operators, the requests, background responses and batches of all API keys that "
    "have not ended. `kind` and `key` in the query narrow the list.",
    WorkList,
    query={**_KIND, **PAGE_QUERY},
)
_CANCEL: Final = _model_operation(
    "Cancels, for operators, a request, a background response or a batch of any API key.",
    CancelledWork,
    query=_KIND,
)


def add_model_routes(
    router: Router,
    context: ApiContext,
    parts: Parts | None = None,
    reload: Reload | None = None,
    work: Sequence[WorkSource] = (),
    extensions: Iterable[Extension] = (),
) -> None:
    """Adds the routes that need the models. Raises ConfigurationError if an extension fails, or
    adds a route that exists.

    Args:
        parts: the optional parts; None = all parts with default settings, and nothing is stored.
        reload: reads the list of models again; None = the server has no list.
        work: sources of running work that operators may list and cancel; parts add their own.
    """
    models = context.models
    completions = Completions(context)
    chat = ChatCompletions(context)
    for dialect in DIALECTS:
        listing = ModelRoutes(models, dialect)
        # Some programs request the models at the root to detect the kind of server.
        for prefix in (*dialect.prefixes, "") if dialect is OPENAI else dialect.prefixes:
            router.add("GET", f"{prefix}/models", listing.list, _LIST)
            router.add("GET", f"{prefix}/models/{{id:path}}", listing.get, _GET)
        load, unload = endpoint(listing.load, dialect), endpoint(listing.unload, dialect)
        for prefix in dialect.prefixes:
            router.add("POST", f"{prefix}/models/{{id:path}}/load", load, _LOAD)
            router.add("POST", f"{prefix}/models/{{id:path}}/unload", unload, _UNLOAD)
            answer = endpoint(completions, dialect)
            router.add("POST", f"{prefix}/completions", answer, _COMPLETIONS)
            router.add("POST", f"{prefix}/chat/completions", endpoint(chat, dialect), _CHATS)
    _add_servable_routes(router, ServableRoutes(models, reload))
    parts = parts or Parts()
    of_operators = WorkRoutes((*work, parts.work))
    cancel = endpoint(of_operators.cancel, OPENAI)
    router.add("GET", "/v1/work", endpoint(of_operators.show, OPENAI), _WORK)
    router.add("POST", "/v1/work/{id}/cancel", cancel, _CANCEL)
    parts.add_routes(router, context)
    for entry, function in extensions:
        with faults_named(entry):
            for route in function(context):
                if not isinstance(route, Route):
                    raise ConfigurationError(f"a route must be a Route, not {route!r}")
                if (route.method, route.path) in router.routes():
                    raise ConfigurationError(f"{route.method} {route.path} exists already")
                router.add(*route)


def _add_servable_routes(router: Router, servables: ServableRoutes) -> None:
    status = _model_operation(
        "Returns the status of every model, as OVMS does.", ServerConfigStatus
    )
    reload = _model_operation(
        "Reads the list of models of `--config-path` again, and returns the same status: 201 where "
        "something has changed, 412 where the list or a model is at fault. It is for operators.",
        ServerConfigStatus,
    )
    router.add("GET", "/v1/config", servables.config, status)
    router.add("POST", "/v1/config/reload", servables.reload, reload)
    ready = _model_operation(
        "Answers 200 when the model can be asked, 503 when it is not loaded or has failed. The "
        "only version is 1.",
        EmptyAnswer,
    )
    infer = _model_operation("Refuses tensors, which a language model does not take.", body=dict)
    metadata = _model_operation(
        "Returns KServe's metadata of a model. The only version is 1.", ModelMetadata
    )
    # Longer patterns first, because a model's name may contain slashes.
    paths = ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}")
    for path in paths:
        router.add("GET", f"{path}/ready", servables.ready, ready)
        router.add("POST", f"{path}/infer", servables.infer, infer)
    for path in paths:
        router.add("GET", path, servables.metadata, metadata)


def add_health_routes(router: Router, health: HealthRoutes) -> None:
    """Adds the health routes, which answer even while models load."""
    operation = partial(Operation, section="Health and monitoring")
    healthy = operation(
        "Answers 200, or 503 while models load and after an engine has failed.", EmptyAnswer
    )
    ready = operation(
        "Answers as `/health` does, and 503 too once the server is about to shut down.", EmptyAnswer
    )
    live = operation("Answers 200 for as long as the process answers at all.", EmptyAnswer)
    probes = (
        ("GET", "/health", health.health, healthy),
        ("GET", "/ping", health.health, healthy),
        ("POST", "/ping", health.health, healthy),
        ("GET", "/ready", health.ready, ready),
        ("GET", "/v2/health/ready", health.ready, ready),
        ("GET", "/v2/health/live", health.live, live),
    )
    for method, path, answer, described in probes:
        router.add(method, path, answer, described)
        # vLLM redirects this path to the one without a slash.
        router.add(method, f"{path}/", answer)
    version = operation("Returns the version of the server.", VersionAnswer)
    server = operation("Returns the server's name and version in KServe's format.", ServerMetadata)
    metrics = operation(
        "Returns Prometheus metrics: all, or those that `name[]` names.",
        str,
        media_type="text/plain",
        query={"name[]": list[str]},
    )
    router.add("GET", "/version", health.version, version)
    router.add("GET", "/v2", health.server, server)
    router.add("GET", "/metrics", health.metrics, metrics)
