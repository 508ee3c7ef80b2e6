"""The fields that both endpoints share."""

from __future__ import annotations

import pytest

from fastovms.params import GrammarKind
from tests.api.ollama.ollama_requests import (
    ASKED,
    CHAT,
    GENERATE,
    PROMPTED,
    ask,
    lines,
    make,
    refused,
)

__all__ = ["make"]
ENDPOINTS = ((CHAT, ASKED), (GENERATE, PROMPTED))


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_options_reach_the_backend(make, path, body):
    options = {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3.0,
               "num_predict": 4, "repeat_penalty": 1.5, "presence_penalty": 1,
               "frequency_penalty": 0.5, "num_ctx": 4096, "stop": ["zz"]}  # fmt: skip
    api = make()
    answer = await ask(api, path, {**body, "options": options})
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 7, 0.1)
    assert (params.seed, params.max_tokens, params.repetition_penalty) == (3, 4, 1.5)
    assert (params.presence_penalty, params.frequency_penalty) == (1, 0.5)
    assert answer["done_reason"] == "length"
    api = make()
    await ask(api, path, body)
    params = api.backend.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.8, 0.9, 40)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("json", GrammarKind.JSON_OBJECT),
        ({"type": "object"}, GrammarKind.JSON_SCHEMA),
        ("", None),
        (None, None),
    ],
)
async def test_formats(make, path, body, given, kind):
    api = make()
    await ask(api, path, {**body, "format": given})
    assert [grammar.kind for grammar in api.backend.compiled] == ([] if kind is None else [kind])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"temperature": 3}}, "options.temperature must be at least 0 and at most 2"),
        ({"options": {"temperature": "x"}}, 'options.temperature must be a number, not "x"'),
        ({"options": {"stop": [""]}}, "options.stop[0] must not be an empty string"),
        ({"options": {"num_predict": 2**40}}, ""),
        ({"format": "yaml"}, 'format must be "json" or a JSON schema, not "yaml"'),
        ({"format": {"bad": 1}}, "format: bad JSON schema"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs must be at least 0 and at most 20"),
        ({"top_logprobs": 2}, "top_logprobs is only allowed when logprobs is true"),
        ({"keep_alive": "soon"}, "keep_alive must be a number of seconds"),
        ({"think": "hard"}, "think must be true, false or one of"),
        ({"model": None}, "model is required"),
    ],
)
async def test_refusals(make, path, body, fields, message):
    api = make()
    if message:
        assert message in await refused(api, path, {**body, **fields})
    else:
        await ask(api, path, {**body, **fields})


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_unknown_models(make, path, body):
    assert await refused(make(), path, {**body, "model": "x"}, 404) == "model 'x' not found"
    answer = await ask(make(), path, {**body, "model": "fake:latest"})
    assert answer["model"] == "fake:latest"


async def test_a_stream_is_the_default(make):
    for stream in ({}, {"stream": None}, {"stream": True}):
        api = make()
        assert len(await lines(api, CHAT, {**ASKED, **stream})) > 2
        assert api.last_request.log_fields["stream"] is True
    api = make()
    await ask(api, CHAT, ASKED)
    assert api.last_request.log_fields["stream"] is False
