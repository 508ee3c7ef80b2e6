"""Tests of the text that the server prints at its start."""

from __future__ import annotations

import json
import shlex

import pytest

from fastovms.api.served import KnownModel, ServedModel, ServedModels
from fastovms.app.greeting import greeting
from fastovms.params import Task
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import ByteTokenizer, FakeBackend, model_info


def served(*names: str) -> ServedModels:
    models = []
    for name in names:
        backend = FakeBackend(lambda request, index: (), model_info(name=name))
        models.append(ServedModel(backend, ByteTokenizer(), GenerationMetrics(name, backend.stats)))
    return ServedModels(models)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:80", ["http://127.0.0.1:80/v1/completions"]),
        ("http://0.0.0.0:80", ["http://127.0.0.1:80/v1/completions"]),
        ("https://[::]:80", ["https://[::1]:80/v1/completions"]),
        ("unix:/run/s", ["--unix-socket", "/run/s", "http://localhost/v1/completions"]),
    ],
)
@pytest.mark.parametrize("needs_key", [False, True])
def test_greeting_ends_with_a_command_for_a_shell(
    address: str, words: list[str], needs_key: bool
) -> None:
    name = "it's"
    *lines, last = greeting([address, "b"], served(name, "x"), needs_key=needs_key).split("\n")
    assert lines[0].endswith(f"is listening on {address}, b")
    assert lines[1:] == [f"model {name}: context of 64 tokens", "model x: context of 64 tokens"]
    tried, curl, *arguments = shlex.split(last)
    assert (tried, curl) == ("try:", "curl")
    assert arguments[: len(words)] == words
    assert json.loads(arguments[-1])["model"] == name
    assert ("Authorization: Bearer $API_KEY" in arguments) is needs_key


@pytest.mark.parametrize(
    ("task", "path", "fields"),
    [
        (Task.TEXT_GENERATION, "completions", {"model", "prompt", "max_tokens"}),
        (Task.EMBEDDINGS, "embeddings", {"model", "input"}),
        (Task.RERANK, "rerank", {"model", "query", "documents"}),
        (Task.IMAGES, "images/generations", {"model", "prompt"}),
    ],
)
def test_a_model_is_tried_at_what_it_does(task: Task, path: str, fields: set[str]) -> None:
    models = ServedModels()
    models.set_known([KnownModel("a", task=task), KnownModel("b")])
    last = greeting(["http://h:1"], models, needs_key=False).split("\n")[-1]
    words = shlex.split(last)
    assert words[2] == f"http://h:1/v1/{path}"
    assert json.loads(words[-1]).keys() == fields


def test_greeting_without_models_names_the_lack() -> None:
    lines = greeting(["x"], ServedModels(), needs_key=False).split("\n")
    assert lines[1:] == ["no model is served until the list of models names one"]


def test_greeting_names_models_that_are_loaded_on_demand() -> None:
    models = ServedModels()
    models.set_known([KnownModel("a", max_model_len=8), KnownModel("b")])
    lines = greeting(["x"], models, needs_key=False).split("\n")
    assert lines[1:3] == [
        "model a: context of 8 tokens, loaded when it is asked for",
        "model b, loaded when it is asked for",
    ]
