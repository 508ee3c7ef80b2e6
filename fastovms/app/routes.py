"""Adds every route to the router: the table of endpoints and their handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from fastovms.api import audio, rerank, tokenize
from fastovms.api.admin import (
    HealthRoutes,
    ModelRoutes,
    Reload,
    ServableRoutes,
    WorkRoutes,
    WorkSource,
)
from fastovms.api.chat import ChatCompletions
from fastovms.api.completions import Completions
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, OPENAI, Dialect
from fastovms.api.endpoint import Operation, Route, endpoint
from fastovms.errors import ConfigurationError
from fastovms.extensions import Extension, faults_named
from fastovms.http.routing import Router
from fastovms.parts import decisions
from fastovms.parts.adapters import endpoints as adapters
from fastovms.parts.messages import endpoints as messages
from fastovms.parts.ollama import models as ollama
from fastovms.parts.responses.background import ResponsesState
from fastovms.parts.responses.conversations import Conversations, StoredResponses
from fastovms.parts.responses.create import Compaction, Responses
from fastovms.parts.responses.resumption import response_work
from fastovms.parts.responses.socket import websocket_handler

PARTS: Final = (
    tokenize.endpoints,
    rerank.endpoints,
    messages.endpoints,
    ollama.endpoints,
    decisions.endpoints,
    audio.endpoints,
    adapters.endpoints,
)
"""The optional parts of the API. Each returns its routes. Entry points of other packages
(`extensions.ENDPOINTS`) have the same interface."""


def add_model_routes(
    router: Router,
    context: ApiContext,
    state: ResponsesState | None = None,
    reload: Reload | None = None,
    work: Sequence[WorkSource] = (),
    extensions: Iterable[Extension] = (),
) -> Mapping[str, Operation]:
    """Adds the routes that need the models, and returns the OpenAPI descriptions of routes that
    have one, by method and path. Raises ConfigurationError if an extension fails, or adds a route
    that exists.

    Args:
        state: the stored responses; None = responses are not stored.
        reload: reads the list of models again; None = the server has no list.
        work: returns the running work that operators may list and cancel, in addition to responses.
    """
    models = context.models
    completions = Completions(context)
    chat = ChatCompletions(context)
    for dialect in DIALECTS:
        listing = ModelRoutes(models, dialect)
        # Programs ask for the models at the root, too, to find out what kind of server it is.
        for prefix in (*dialect.prefixes, "") if dialect is OPENAI else dialect.prefixes:
            router.add("GET", f"{prefix}/models", listing.list)
            router.add("GET", f"{prefix}/models/{{id:path}}", listing.get)
        for prefix in dialect.prefixes:
            for path, handler in (("load", listing.load), ("unload", listing.unload)):
                router.add(
                    "POST", f"{prefix}/models/{{id:path}}/{path}", endpoint(handler, dialect)
                )
            router.add("POST", f"{prefix}/completions", endpoint(completions, dialect))
            router.add("POST", f"{prefix}/chat/completions", endpoint(chat, dialect))
        _add_response_routes(router, context, state, dialect)
    _add_servable_routes(router, ServableRoutes(models, reload))
    responses = () if state is None else (partial(response_work, state),)
    of_operators = WorkRoutes((*work, *responses))
    router.add("GET", "/v1/work", endpoint(of_operators.show, OPENAI))
    router.add("POST", "/v1/work/{id}/cancel", endpoint(of_operators.cancel, OPENAI))
    added = [route for endpoints in PARTS for route in endpoints(context)]
    for route in added:
        router.add(route.method, route.path, route.handler)
    for entry, function in extensions:
        with faults_named(entry):
            for route in function(context):
                if not isinstance(route, Route):
                    raise ConfigurationError(f"a route must be a Route, not {route!r}")
                if (route.method, route.path) in router.routes():
                    raise ConfigurationError(f"{route.method} {route.path} exists already")
                router.add(route.method, route.path, route.handler)
                added.append(route)
    described = {f"{route.method} {route.path}": route.operation for route in added}
    return {name: operation for name, operation in described.items() if operation is not None}


def _add_response_routes(
    router: Router, context: ApiContext, state: ResponsesState | None, dialect: Dialect
) -> None:
    responses = Responses(context, state)
    stored = StoredResponses(state)
    conversations = Conversations(context, state)
    item = "/conversations/{id}/items/{item_id}"
    handlers = (
        ("POST", "/responses", responses.create),
        ("POST", "/responses/input_tokens", responses.count_input),
        ("POST", "/responses/compact", Compaction(context, state)),
        ("GET", "/responses/{id}", stored.get),
        ("DELETE", "/responses/{id}", stored.delete),
        ("POST", "/responses/{id}/cancel", stored.cancel),
        ("GET", "/responses/{id}/input_items", stored.list_input),
        ("POST", "/conversations", conversations.create),
        ("GET", "/conversations", conversations.list),
        ("GET", "/conversations/{id}", conversations.get),
        ("POST", "/conversations/{id}", conversations.update),
        ("DELETE", "/conversations/{id}", conversations.delete),
        ("POST", "/conversations/{id}/items", conversations.add_items),
        ("GET", "/conversations/{id}/items", conversations.list_items),
        ("GET", item, conversations.get_item),
        ("DELETE", item, conversations.delete_item),
    )
    for prefix in dialect.prefixes:
        for method, path, handler in handlers:
            router.add(method, f"{prefix}{path}", endpoint(handler, dialect))
        socket = websocket_handler(endpoint(responses.create, dialect), context.bodies)
        router.add("GET", f"{prefix}/responses", socket)


def _add_servable_routes(router: Router, servables: ServableRoutes) -> None:
    router.add("GET", "/v1/config", servables.config)
    router.add("POST", "/v1/config/reload", servables.reload)
    # The longer patterns first: a model's name may have slashes.
    for path in ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}"):
        router.add("GET", f"{path}/ready", servables.ready)
        router.add("POST", f"{path}/infer", servables.infer)
    for path in ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}"):
        router.add("GET", path, servables.metadata)


def add_health_routes(router: Router, health: HealthRoutes) -> None:
    """Adds the health routes, which answer at any time."""
    probes = (
        ("GET", "/health", health.health),
        ("GET", "/ping", health.health),
        ("POST", "/ping", health.health),
        ("GET", "/ready", health.ready),
        ("GET", "/v2/health/ready", health.ready),
        ("GET", "/v2/health/live", health.live),
    )
    for method, path, answer in probes:
        for slash in ("", "/"):  # which vLLM redirects to the path without it
            router.add(method, path + slash, answer)
    router.add("GET", "/version", health.version)
    router.add("GET", "/v2", health.server)
    router.add("GET", "/metrics", health.metrics)
