"""The real server process on the demo model, called as its users call it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import urllib.error
import urllib.request

import openai
import pytest

from tests.real_server import (
    DEADLINE,
    NAME,
    PROMPT,
    client,
    is_idle,
    narrow_server,
    read_to_end,
    server,
)

__all__ = ["client", "narrow_server", "server"]


def test_greeting_has_address_model_and_a_command(server):
    assert server.greeting[0].startswith("fastovms ")
    assert server.greeting[0].split()[-1].startswith("http://127.0.0.1:")
    assert NAME in server.greeting[1]
    command = server.greeting[2].removeprefix("try: ")
    shown = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert json.loads(shown.stdout)["choices"][0]["text"]


def test_model_is_listed_and_an_unknown_one_is_not_found(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7}])
def test_a_stream_equals_the_unary_text(client, sampling):
    request = {"model": NAME, "prompt": [PROMPT, "The "], "n": 2, "max_tokens": 24, **sampling}
    answer = client.completions.create(**request)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens <= 4 * 24
    texts = dict.fromkeys(range(4), "")
    finished = []
    usage = None
    for chunk in client.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                finished.append((choice.index, choice.finish_reason))
    assert list(texts.values()) == [choice.text for choice in answer.choices]
    assert sorted(finished) == [(c.index, c.finish_reason) for c in answer.choices]
    assert usage.completion_tokens == answer.usage.completion_tokens
    assert usage.prompt_tokens == answer.usage.prompt_tokens


def test_token_ids_and_text_are_the_same_prompt(server):
    with server.client("/v1") as client:
        echoed = (
            client.completions.create(model=NAME, prompt=[5, 6, 7], echo=True, max_tokens=0)
            .choices[0]
            .text
        )
        by_text, by_ids = (
            client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=8)
            for prompt in (echoed, [5, 6, 7])
        )
    assert by_ids.usage.prompt_tokens == 3
    if by_text.usage.prompt_tokens == 3:
        assert by_text.choices[0].text == by_ids.choices[0].text


def test_stop_string_cuts_whole_and_streamed_text(server):
    with server.client("/v1") as client:
        request = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
        whole = client.completions.create(**request).choices[0].text
        stop = whole[10:13]
        cut = client.completions.create(**request, stop=stop).choices[0]
        stream = client.completions.create(**request, stop=stop, stream=True)
        streamed = "".join(chunk.choices[0].text for chunk in stream)
    assert cut.text == streamed == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize(
    "fields", [{"temperature": 5}, {"prompt": ""}, {"prompt": [10**6]}, {"max_tokens": 0}]
)
def test_invalid_completion_is_refused_by_field_name(client, fields):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": NAME, "prompt": PROMPT, **fields})
    assert next(iter(fields)) in str(caught.value.body)


@pytest.mark.parametrize("prompt", [[5] * 300_000, "word " * 300_000])
def test_prompt_beyond_the_context_is_refused(server, prompt):
    for path in ("/v1/completions", "/v3/completions"):
        assert server.post(path, json.dumps({"model": NAME, "prompt": prompt}).encode()) == 400


def test_completion_of_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt=PROMPT)


def test_counts_of_tokenize_agree_with_usage(server):
    def post(path: str, body: dict) -> dict:
        request = urllib.request.Request(server.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return json.load(response)

    for text in ("a", PROMPT, "Grüße aus Köln 😀"):
        tokens = post("/tokenize", {"prompt": text})
        assert post("/v3/tokenize", {"model": NAME, "text": text})["tokens"] == tokens["tokens"]
        assert post("/v1/detokenize", {"tokens": tokens["tokens"]})["prompt"] == text
        body = {"model": NAME, "prompt": text, "max_tokens": 1}
        for path in ("/v1/completions", "/v3/completions"):
            assert post(path, body)["usage"]["prompt_tokens"] == tokens["count"]


async def test_many_clients_at_once(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        streams = [
            await client.completions.create(
                model=NAME,
                prompt=PROMPT,
                max_tokens=10,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in range(32)
        ]
        for stream in streams:
            reasons = [chunk.choices[0].finish_reason async for chunk in stream]
            assert reasons[-1] == "length"
    assert is_idle(server.wait_until(is_idle))


def test_random_bodies_leave_the_server_answering(server):
    rng = random.Random(2)
    for length in range(100):
        assert server.post("/v1/completions", rng.randbytes(length)) == 400
        assert server.post("/v3/completions", rng.randbytes(length)) == 412
    assert server.post("/v1/completions", b'{"prompt": "a", "max_tokens": 1}') == 200


def test_a_client_that_leaves_while_decoding_frees_its_blocks(server):
    before = server.wait_until(is_idle)["kv_cache_usage_perc"]
    with server.start_completion(max_tokens=2000, ignore_eos=True) as connection:
        connection.recv(1)
        assert server.metrics()["num_requests_running"] == 1
    assert server.wait_until(is_idle)["kv_cache_usage_perc"] <= before


def test_clients_that_leave_while_prefilling_and_queued(narrow_server):
    server = narrow_server
    with server.start_completion(prompt=[5] * 2000, max_tokens=1):
        server.wait_until(lambda metrics: metrics["num_requests_running"] == 1)
        with server.start_completion():
            server.wait_until(lambda metrics: metrics["num_requests_waiting"] == 1)
        server.wait_until(lambda metrics: metrics["num_requests_waiting"] == 0)
    metrics = server.wait_until(is_idle)
    assert metrics["generation_tokens_total"] == 0, "both left before their first token"
    assert metrics["kv_cache_usage_perc"] == 0


def test_the_first_signal_lets_streams_end_and_refuses_new_ones(narrow_server):
    server = narrow_server
    with server.start_completion(max_tokens=300, ignore_eos=True) as stream:
        received = stream.recv(1)
        server.process.send_signal(signal.SIGTERM)
        received += read_to_end(stream)
    assert b'"finish_reason":"length"' in received
    assert b"data: [DONE]\n\n" in received
    assert server.process.wait(DEADLINE) == 0


def test_the_second_signal_ends_streams_with_an_error(narrow_server):
    server = narrow_server
    with server.start_completion(max_tokens=2000, ignore_eos=True) as stream:
        stream.recv(1)
        server.process.send_signal(signal.SIGINT)
        server.wait_until_closed()
        server.process.send_signal(signal.SIGTERM)
        received = read_to_end(stream)
    assert b'data: {"error":{"message":"the server is shutting down"' in received
    assert server.process.wait(DEADLINE) == 0
