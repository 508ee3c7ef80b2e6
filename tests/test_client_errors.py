"""The openai client raises for this server what it raises for OpenAI, in both dialects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.real_server import Server, started

REQUEST = {"model": "m", "prompt": "Once upon a time"}
PREFIXES = pytest.mark.parametrize("prefix", ["/v1", "/v3"])


@pytest.fixture(scope="module", params=["paged", pytest.param("genai", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    narrow = ["--max-num-seqs", "1", "--max-queued-requests", "1", "--cache-size", "0.1"]
    narrow += ["--backend", request.param]
    model = ["--model", f"m={DEMO_MODEL}"]
    with started("serve", *model, "--port", "0", "--api-key", "secret", *narrow) as server:
        yield server


@PREFIXES
def test_wrong_key_raises_an_authentication_error(server, prefix):
    for key in ("wrong", "secret-"):
        with server.client(prefix, key) as client, pytest.raises(openai.AuthenticationError):
            client.completions.create(**REQUEST)


@PREFIXES
@pytest.mark.parametrize(
    ("fields", "error", "param", "code"),
    [
        ({"temperature": 5}, openai.BadRequestError, "temperature", None),
        (
            {"prompt": "word " * 100_000},
            openai.BadRequestError,
            "prompt",
            "context_length_exceeded",
        ),
        ({"logit_bias": {"a": 1}}, openai.BadRequestError, "logit_bias.a", None),
        ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
    ],
)
def test_invalid_request_raises_the_error_class_of_openai(
    server, prefix, fields, error, param, code
):
    with server.client(prefix, "secret") as client:
        for streamed in (False, True):
            with pytest.raises(error) as caught:
                client.completions.create(**{**REQUEST, **fields}, stream=streamed)
            if prefix == "/v1":
                assert (caught.value.param, caught.value.code) == (param, code)
                assert caught.value.type in ("invalid_request_error", "not_found_error")
            else:
                assert isinstance(caught.value.body, str)


def wait_for_one_waiting(client: openai.OpenAI, url: str) -> None:
    deadline = time.monotonic() + 60
    ask = client.with_options(base_url=url)
    while 'num_requests_waiting{model_name="m"} 1.0' not in ask.get("/metrics", cast_to=str):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@PREFIXES
def test_request_beyond_the_queue_raises_a_rate_limit_error(server, prefix):
    """One runs, one waits; what comes behind them is refused."""
    fields = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with server.client(prefix, "secret") as client, ThreadPoolExecutor() as pool:
        with client.completions.create(**REQUEST, **fields, stream=True) as running:
            next(iter(running))
            waiting = pool.submit(client.completions.create, **REQUEST, max_tokens=1)
            wait_for_one_waiting(client, server.url)
            for streamed in (False, True):
                with pytest.raises(openai.RateLimitError) as caught:
                    client.completions.create(**REQUEST, stream=streamed)
                assert int(caught.value.response.headers["retry-after"]) >= 1
        assert waiting.result().choices[0].finish_reason == "length"
