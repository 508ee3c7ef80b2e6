"""Answers `GET /models` and `/models/{id}`, and loads and unloads models for operators."""

from __future__ import annotations

import orjson

from fastovms.api.admin.anthropic_models import anthropic_card, anthropic_list
from fastovms.api.admin.codex_models import client_cards
from fastovms.api.serving.residency import ModelState
from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.api.wire.dialect import ANTHROPIC, Dialect
from fastovms.api.wire.error_responses import error_response, model_not_found, render_error
from fastovms.http.routing.messages import Request, Response


class ModelRoutes:
    """The model routes of one dialect."""

    def __init__(self, models: ServedModels, dialect: Dialect) -> None:
        self._models = models
        self._dialect = dialect

    def list(self, request: Request) -> Response:
        known = self._models.known
        if _is_anthropics(request):
            return _json(anthropic_list(known))
        data = [_card(model, self._dialect) for model in known]
        answer: dict[str, object] = {"object": "list", "data": data}
        if self._dialect.describes_models:
            answer["models"] = [card for model in known for card in client_cards(model)]
        return _json(answer)

    def get(self, request: Request) -> Response:
        name, dialect = request.path_params["id"], self._dialect
        model = self._models.get(name)
        if _is_anthropics(request):
            if model is not None:
                return _json(anthropic_card(model))
            dialect = ANTHROPIC
        if model is None:
            return error_response(model_not_found(name, dialect), dialect, request.id)
        return _json(_card(model, dialect))

    async def load(self, request: Request, dialect: Dialect) -> Response:
        """Loads a model, and answers when it is in memory.

        Raises:
            BackendError: it cannot be loaded now.
            ModelNotFound: it is unknown.
        """
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        model = self._models.find(request.path_params["id"], dialect)
        if self._models.holder is not None:
            await self._models.holder.load(model.name)
        return _json(_card(model, dialect))

    async def unload(self, request: Request, dialect: Dialect) -> Response:
        """Unloads a model when the requests on it have ended, and answers when it is out of memory.

        Raises:
            BackendUnavailable: requests run on it for too long.
            ModelNotFound: it is unknown.
        """
        if (refusal := operator_refusal(request)) is not None:
            return refusal
        model = self._models.find(request.path_params["id"], dialect)
        if self._models.holder is not None:
            await self._models.holder.unload(model.name)
        return _json(_card(model, dialect))


def operator_refusal(request: Request) -> Response | None:
    """Returns the 403 for a client that is not an operator."""
    if request.is_admin:
        return None
    if request.tenant:
        message = (
            "this needs an operator's key: one that is followed by the word admin in the file of "
            "--api-key-file"
        )
    else:
        message = (
            "a server without API keys takes this only from programs of its own machine, and not "
            "through a proxy"
        )
    return render_error(request, 403, message)


def _is_anthropics(request: Request) -> bool:
    """Returns whether Anthropic's client asks, which asks for the models at the same path as
    OpenAI's, but says which version of its API it speaks."""
    return "anthropic-version" in request.headers


def _json(content: dict[str, object]) -> Response:
    return Response(200, orjson.dumps(content))


def _card(model: KnownModel, dialect: Dialect) -> dict[str, object]:
    card: dict[str, object] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": dialect.owned_by,
    }
    if dialect.describes_models:
        card |= {
            "root": model.name,
            "parent": None,
            "permission": [],
            "status": _status(model),
        }
        if model.max_model_len is not None:
            card["max_model_len"] = model.max_model_len
        if model.capabilities is not None:
            card["capabilities"] = model.capabilities
    return card


def _status(model: KnownModel) -> dict[str, object]:
    """Returns where a model is, in the form of llama.cpp's router."""
    state = model.state
    if state is ModelState.FAILED:
        return {"value": "unloaded", "failed": True, "reason": model.reason}
    return {"value": "loaded" if state is ModelState.AVAILABLE else state.value}
