"""Adds every route to the router: the table of endpoints and their handlers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
from fastovms.api.dialect import ANTHROPIC, COHERE, DIALECTS, OLLAMA, OPENAI, OVMS, Dialect
from fastovms.api.embeddings import EmbeddingsRoute
from fastovms.api.endpoint import endpoint
from fastovms.api.messages.endpoints import Messages
from fastovms.api.ollama.generation import OllamaGeneration
from fastovms.api.ollama.models import OllamaEmbed, OllamaModels
from fastovms.api.rerank import RerankRoute, ScoreRoute
from fastovms.api.responses.background import ResponsesState
from fastovms.api.responses.conversations import Conversations, StoredResponses
from fastovms.api.responses.create import Compaction, Responses
from fastovms.api.responses.resumption import response_work
from fastovms.api.tokenize import OvmsTokenization, Tokenization
from fastovms.http.routing import Router


def add_model_routes(
    router: Router,
    context: ApiContext,
    state: ResponsesState | None = None,
    reload: Reload | None = None,
    work: Sequence[WorkSource] = (),
) -> None:
    """Adds the routes that need the models.

    Args:
        state: what outlives requests; None = nothing does.
        reload: reads the list of models again; None = there is none.
        work: return what operators may list and cancel, beside responses.
    """
    models = context.models
    completions = Completions(context)
    chat = ChatCompletions(context)
    tokenization, of_ovms = Tokenization(context), OvmsTokenization(context)
    encoding = (
        ("/embeddings", EmbeddingsRoute(context)),
        ("/rerank", RerankRoute(context)),
        ("/score", ScoreRoute(context)),
    )
    for dialect in DIALECTS:
        tokenize = of_ovms.tokenize if dialect is OVMS else tokenization.tokenize
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
            router.add("POST", f"{prefix}/tokenize", endpoint(tokenize, dialect))
            router.add("POST", f"{prefix}/detokenize", endpoint(tokenization.detokenize, dialect))
            for path, route in encoding:
                router.add("POST", f"{prefix}{path}", endpoint(route, dialect))
        _add_response_routes(router, context, state, dialect)
    for path, route in encoding[1:]:  # where vLLM has them, too
        router.add("POST", path, endpoint(route, OPENAI))
    router.add("POST", "/v2/rerank", endpoint(encoding[1][1], COHERE))
    router.add("POST", "/tokenize", endpoint(tokenization.tokenize, OPENAI))
    router.add("POST", "/detokenize", endpoint(tokenization.detokenize, OPENAI))
    messages = Messages(context)
    router.add("POST", "/v1/messages", endpoint(messages.create, ANTHROPIC))
    router.add("POST", "/v1/messages/count_tokens", endpoint(messages.count_tokens, ANTHROPIC))
    _add_servable_routes(router, ServableRoutes(models, reload))
    responses = () if state is None else (partial(response_work, state),)
    of_operators = WorkRoutes((*work, *responses))
    router.add("GET", "/v1/work", endpoint(of_operators.show, OPENAI))
    router.add("POST", "/v1/work/{id}/cancel", endpoint(of_operators.cancel, OPENAI))
    _add_ollama_routes(router, context)


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


def _add_servable_routes(router: Router, servables: ServableRoutes) -> None:
    router.add("GET", "/v1/config", servables.config)
    router.add("POST", "/v1/config/reload", servables.reload)
    # The longer patterns first: a model's name may have slashes.
    for path in ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}"):
        router.add("GET", f"{path}/ready", servables.ready)
        router.add("POST", f"{path}/infer", servables.infer)
    for path in ("/v2/models/{name:path}/versions/{version}", "/v2/models/{name:path}"):
        router.add("GET", path, servables.metadata)


def _add_ollama_routes(router: Router, context: ApiContext) -> None:
    generation, models = OllamaGeneration(context), OllamaModels(context)
    encoding = OllamaEmbed(context)
    router.add("GET", "/api/version", models.version)
    router.add("GET", "/api/tags", models.tags)
    router.add("GET", "/api/ps", models.ps)
    for method, path, handler in (
        ("POST", "chat", generation.chat),
        ("POST", "generate", generation.generate),
        ("POST", "embed", encoding.embed),
        ("POST", "embeddings", encoding.embeddings),
        ("POST", "show", models.show),
        ("POST", "pull", models.pull),
        ("POST", "push", models.refuse),
        ("POST", "create", models.refuse),
        ("POST", "copy", models.refuse),
        ("DELETE", "delete", models.refuse),
        ("POST", "blobs/{digest}", models.refuse),
    ):
        router.add(method, f"/api/{path}", endpoint(handler, OLLAMA))


def add_health_routes(router: Router, health: HealthRoutes) -> None:
    """Adds the routes that can be asked at any time."""
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
