"""Models in Anthropic's form, for who names a version of its API."""

from __future__ import annotations

import orjson

from fastovms.api.admin.anthropic_models import anthropic_list
from fastovms.api.admin.models import ModelRoutes
from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.api.wire.dialect import OPENAI
from fastovms.http.routing.messages import Headers, Request, Response

CARD = {
    "type": "model",
    "id": "a/b",
    "display_name": "a/b",
    "created_at": "2025-06-15T15:06:40+00:00",
    "lifecycle": "active",
    "max_input_tokens": 2048,
    "max_tokens": 2048,
    "capabilities": None,
    "deprecated_at": None,
    "retires_at": None,
    "line": None,
}


def routes() -> ModelRoutes:
    models = ServedModels()
    models.set_known([KnownModel("a/b", created=1_750_000_000, max_model_len=2048)])
    return ModelRoutes(models, OPENAI)


def ask(name: str = "", **fields: str) -> tuple[Response, dict]:
    headers = Headers((key.replace("_", "-"), value) for key, value in fields.items())
    request = Request("GET", f"/v1/models/{name}", headers=headers, id="r-1")
    request.path_params = {"id": name}
    response = routes().get(request) if name else routes().list(request)
    return response, orjson.loads(response.body)


def test_the_list() -> None:
    page = {"data": [CARD], "has_more": False, "first_id": "a/b", "last_id": "a/b"}
    assert ask(anthropic_version="2023-06-01")[1] == page
    assert ask()[1]["object"] == "list"
    assert anthropic_list([])["first_id"] is None


def test_one_model() -> None:
    assert ask("a/b", anthropic_version="2023-06-01")[1] == CARD
    assert ask("a/b")[1]["object"] == "model"


def test_an_unknown_model() -> None:
    response, error = ask("other", anthropic_version="2023-06-01")
    assert response.status == 404
    assert (error["type"], error["error"]["type"]) == ("error", "not_found_error")
    assert error["request_id"] == "r-1"
