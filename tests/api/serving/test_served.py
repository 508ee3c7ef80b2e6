"""Models are found by their names."""

from __future__ import annotations

import orjson
import pytest

from fastovms.api.admin.models import ModelRoutes
from fastovms.api.wire.dialect import OLLAMA, OPENAI
from fastovms.errors import ModelNotFound
from tests.api.admin.test_models import several_models
from tests.fakes import make_request


def test_several_models_and_names():
    models, _ = several_models()
    assert [model.info.name for model in models] == ["one", "two"]
    for name, expected in ((None, "one"), ("uno", "one"), ("org/uno", "one"), ("two", "two"),
                           ("uno:latest", "one")):  # fmt: skip
        assert models.find(name, OPENAI).name == expected
    with pytest.raises(ModelNotFound):
        models.find("three", OPENAI)
    with pytest.raises(ModelNotFound, match="model 'three:latest' not found"):
        models.find("three:latest", OLLAMA)
    routes = ModelRoutes(models, OPENAI)
    listing = orjson.loads(routes.list(make_request("/v1/models")).body)
    assert [card["id"] for card in listing["data"]] == ["one", "two"]
    for name in ("one", "uno", "org/uno"):
        request = make_request("/v1/models/x")
        request.path_params = {"id": name}
        assert orjson.loads(routes.get(request).body)["id"] == "one"
