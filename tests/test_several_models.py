"""Several models in one real process."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.real_server import Server, start_server, stop_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    models = ("--model", f"one={DEMO_MODEL}", "--model", f"org/two={DEMO_MODEL}")
    server = start_server(*models, "--max-model-len", "1k", "--max-num-seqs", "4")
    yield server
    stop_server(server)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_model_field_selects_one_of_two_models(server, prefix):
    assert server.greeting[1:] == [
        "model one: context of 1000 tokens", "model org/two: context of 1000 tokens",
    ]  # fmt: skip
    with server.client(prefix) as client:
        assert [model.id for model in client.models.list()] == ["one", "org/two"]
        assert client.models.retrieve("org/two").id == "org/two"
        texts = set()
        for name in ("one", "org/two"):
            answer = client.completions.create(
                model=name, prompt="Once upon a time", temperature=0, max_tokens=8
            )
            assert answer.model == name
            texts.add(answer.choices[0].text)
        assert len(texts) == 1
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model=DEMO_MODEL.name, prompt="a")
        if prefix == "/v1":
            lengths = [model.max_model_len for model in client.models.list()]
            assert lengths == [1000, 1000]
