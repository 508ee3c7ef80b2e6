"""Answers `GET /models` and `/models/{id}`. The bodies never change, so they are made at start."""

from __future__ import annotations

import orjson

from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import error_response, model_not_found
from fastovms.http.routing.messages import Request, Response


class ModelRoutes:
    """The model routes of one dialect."""

    def __init__(self, models: ServedModels, dialect: Dialect) -> None:
        self._dialect = dialect
        cards = [(model, _card(model, dialect)) for model in models]
        data = [card for _, card in cards]
        self._list = _card_response({"object": "list", "data": data})
        self._by_name = {
            name: _card_response(card)
            for model, card in cards
            for name in (model.info.name, *model.aliases)
        }

    def list(self, request: Request) -> Response:
        return self._list

    def get(self, request: Request) -> Response:
        name = request.path_params["id"]
        card = self._by_name.get(name)
        return card if card is not None else error_response(model_not_found(name), self._dialect)


def _card_response(content: dict[str, object]) -> Response:
    return Response(200, orjson.dumps(content))


def _card(served: ServedModel, dialect: Dialect) -> dict[str, object]:
    model = served.info
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
            "max_model_len": model.max_model_len,
            "permission": [],
            "capabilities": _capabilities(served),
        }
    return card


def _capabilities(served: ServedModel) -> list[str]:
    """Returns what a client may offer its user with a model, in the words of Ollama's
    `/api/show`."""
    chat = served.chat
    found = {
        "completion": True,
        "chat": chat.template is not None,
        "tools": chat.template is not None and chat.tool_format is not None,
        "thinking": chat.reasoning_format is not None,
        "vision": served.images is not None,
    }
    return [name for name, is_there in found.items() if is_there]
