"""The real server process on the demo model, called as its users call it."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fastovms.cli import DEMO_MODEL

NAME = DEMO_MODEL.name
PROMPT = "Once upon a time"
DEADLINE = 20.0


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    greeting: list[str]

    def client(self, prefix: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + prefix, api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: bytes) -> int:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, body), timeout=DEADLINE
            ) as response:
                return response.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE)

    def start_completion(self, **fields: object) -> socket.socket:
        """A connection that has sent a request and not yet read anything."""
        body = json.dumps({"model": NAME, "prompt": PROMPT, "stream": True, **fields}).encode()
        connection = self.connect()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        return connection

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=DEADLINE) as response:
            text = response.read().decode()
        return {
            sample.name.removeprefix("fastovms_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_until_closed(self) -> None:
        """Returns when new connections are refused."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            try:
                self.connect().close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it was in the queue of a listener that has gone
                continue
        pytest.fail("the server still accepts connections")

    def wait_until(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        deadline = time.monotonic() + DEADLINE
        while not condition(metrics := self.metrics()):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.02)
        return metrics


def start_server(*flags: str) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "fastovms", "serve", "--port", "0", "--cache-size", "0.1", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    greeting = [process.stdout.readline().rstrip("\n") for _ in range(3)]
    return Server(process, greeting[0].rpartition(" ")[2], greeting)


def stop_server(server: Server) -> None:
    server.process.kill()
    server.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server()
    yield server
    stop_server(server)


@pytest.fixture
def narrow_server() -> Iterator[Server]:
    """Runs one sequence at a time, a few tokens a step, so that requests queue and prefill."""
    server = start_server("--max-num-seqs", "1", "--max-num-batched-tokens", "2")
    yield server
    stop_server(server)


@pytest.fixture(params=["/v1", "/v3", "/v3/v1"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[openai.OpenAI]:
    with server.client(request.param) as client:
        yield client


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def is_idle(metrics: dict[str, float]) -> bool:
    return metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0


def test_greeting_tells_address_model_and_a_command_to_try(server):
    assert server.greeting[0].startswith("fastovms ")
    assert server.greeting[0].split()[-1].startswith("http://127.0.0.1:")
    assert NAME in server.greeting[1]
    command = server.greeting[2].removeprefix("try: ")
    shown = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert json.loads(shown.stdout)["choices"][0]["text"]


def test_models(client):
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


def test_stop_string(server):
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
def test_bad_requests(client, fields):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": NAME, "prompt": PROMPT, **fields})
    assert next(iter(fields)) in str(caught.value.body)


@pytest.mark.parametrize("prompt", [[5] * 300_000, "word " * 300_000])
def test_huge_prompts(server, prompt):
    for path in ("/v1/completions", "/v3/completions"):
        assert server.post(path, json.dumps({"model": NAME, "prompt": prompt}).encode()) == 400


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt=PROMPT)


def test_log_probabilities(client):
    request = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "logprobs": 3}
    choice = client.completions.create(**request).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    starts = [len("".join(found.tokens[:place])) for place in range(len(found.tokens))]
    assert found.text_offset == starts
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert max(top, key=top.get) == token, "greedy takes the likeliest"
        assert top[token] == logprob <= 0
        assert len(top) == 3
    streamed: dict[str, list] = {"tokens": [], "token_logprobs": [], "text_offset": []}
    for chunk in client.completions.create(**request, stream=True):
        for name, elements in streamed.items():
            elements += getattr(chunk.choices[0].logprobs, name)
    assert streamed["tokens"] == found.tokens
    assert streamed["text_offset"] == found.text_offset
    assert streamed["token_logprobs"] == pytest.approx(found.token_logprobs, abs=1e-3)


def test_scoring_a_prompt_agrees_with_generating_it(client):
    request = {"model": NAME, "temperature": 0, "logprobs": 1}
    made = client.completions.create(**request, prompt=PROMPT, max_tokens=8).choices[0]
    scored = client.completions.create(
        **request, prompt=PROMPT + made.text, max_tokens=0, echo=True
    )
    choice = scored.choices[0]
    assert choice.text == PROMPT + made.text
    assert scored.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == scored.usage.prompt_tokens
    assert choice.logprobs.token_logprobs[0] is None
    if choice.logprobs.tokens[-len(made.logprobs.tokens) :] == made.logprobs.tokens:
        assert choice.logprobs.token_logprobs[-len(made.logprobs.tokens) :] == pytest.approx(
            made.logprobs.token_logprobs, abs=1e-2
        )


def test_candidates(server):
    with server.client("/v1") as client:
        request = {"model": NAME, "prompt": PROMPT, "max_tokens": 6, "seed": 3}
        best = client.completions.create(**request, n=2, best_of=5)
        every = client.completions.create(**request, n=5, logprobs=0)
    means = {
        choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
        for choice in every.choices
    }
    ranked = sorted(means, key=means.get, reverse=True)
    assert best.choices[0].text == ranked[0]
    assert {choice.text for choice in best.choices} <= set(means)
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_beam_search_is_the_same_in_both_dialects(server):
    request = {"model": NAME, "prompt": PROMPT, "max_tokens": 8, "best_of": 4, "n": 2}
    with server.client("/v1") as client:
        openai_texts = [
            choice.text
            for choice in client.completions.create(
                **request, extra_body={"use_beam_search": True}
            ).choices
        ]
        stream = client.completions.create(
            model=NAME,
            prompt=PROMPT,
            max_tokens=8,
            n=4,
            stream=True,
            extra_body={"use_beam_search": True},
        )
        chunks = [chunk.choices[0] for chunk in stream]
    with server.client("/v3") as client:
        ovms_texts = [choice.text for choice in client.completions.create(**request).choices]
    assert openai_texts == ovms_texts
    assert len(set(openai_texts)) == 2
    assert [chunk.text for chunk in chunks[:2]] == openai_texts
    assert len(chunks) == 4


def test_stop_strings_end_beams_and_leave_the_others_different(client):
    request = {"model": NAME, "prompt": PROMPT, "max_tokens": 8, "n": 4}
    search = {"use_beam_search": True}
    every = client.completions.create(**request, extra_body=search).choices
    stop = every[0].text.strip()[:2]
    choices = client.completions.create(**request, extra_body=search, stop=stop).choices
    assert "stop" in [choice.finish_reason for choice in choices]
    assert not any(stop in choice.text for choice in choices)
    kept = client.completions.create(
        **request, extra_body={**search, "include_stop_str_in_output": True}, stop=stop
    ).choices
    assert len({choice.text for choice in kept}) == 4
    for choice in kept:
        assert choice.text.endswith(stop) == (choice.finish_reason == "stop")


def test_tokens_are_favoured_forbidden_and_required(client):
    request = {"model": NAME, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 0}
    first = client.completions.create(**request, extra_body={"return_token_ids": True}).choices[0]
    token_id = first.token_ids[0]
    for fields, text in (
        ({"logit_bias": {str(token_id): 100}}, first.logprobs.tokens[0] * 6),
        ({"allowed_token_ids": [token_id]}, first.logprobs.tokens[0] * 6),
    ):
        extra = {**fields, "ignore_eos": True}
        assert client.completions.create(**request, extra_body=extra).choices[0].text == text
    banned = client.completions.create(**request, logit_bias={str(token_id): -100}).choices[0]
    assert banned.logprobs.tokens[0] != first.logprobs.tokens[0]
    stopped = client.completions.create(
        **request, extra_body={"stop_token_ids": [first.token_ids[2]]}
    ).choices[0]
    assert stopped.text == "".join(first.logprobs.tokens[:2])
    assert stopped.finish_reason == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["red", "green"]},
        {"structured_outputs": {"regex": "(red|green)"}},
        {"response_format": {"type": "regex", "pattern": "(red|green)"}},
        {"guided_grammar": 'root ::= "red" | "green"'},
        {
            "response_format": {
                "type": "structural_tag",
                "format": {
                    "type": "or",
                    "elements": [
                        {"type": "const_string", "value": "red"},
                        {"type": "const_string", "value": "green"},
                    ],
                },
            }
        },
    ],
)
def test_constrained_text(client, fields):
    answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, extra_body=fields)
    assert answer.choices[0].text in ("red", "green")
    assert answer.choices[0].finish_reason == "stop"


def test_a_grammar_that_cannot_go_on_is_the_clients_fault(client):
    request = {
        "model": NAME, "prompt": PROMPT, "max_tokens": 60,
        "extra_body": {"structured_outputs": {"regex": "[a-z]{10}b{100000}"}},
    }  # fmt: skip
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**request)
    assert "structured_outputs.regex: the regex cannot go on" in str(caught.value.body)
    with pytest.raises(openai.APIError) as failed:
        list(client.completions.create(**request, stream=True))
    assert "the regex cannot go on" in str(failed.value.body)


def test_json_of_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ada", "Bob"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    for fields in (
        {"guided_json": schema},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    ):
        answer = client.completions.create(
            model=NAME, prompt=PROMPT, max_tokens=60, n=2, extra_body=fields
        )
        for choice in answer.choices:
            value = json.loads(choice.text)
            assert value["name"] in ("Ada", "Bob")
            assert isinstance(value["old"], bool)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(
            model=NAME, prompt=PROMPT, extra_body={"guided_json": {"type": "colour"}}
        )
    assert "guided_json" in str(caught.value.body)


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
