"""The real server process on the demo model, called as its users call it."""

from __future__ import annotations

import json
import random
import subprocess

import openai
import pytest

from tests.conftest import NEEDS_CURL
from tests.real_server import (
    NAME,
    PROMPT,
    client,
    is_idle,
    narrow_server,
    server,
)

__all__ = ["client", "narrow_server", "server"]


@NEEDS_CURL
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


def test_random_bodies_leave_the_server_answering(server):
    rng = random.Random(2)
    for length in range(100):
        assert server.post("/v1/completions", rng.randbytes(length)) == 400
        assert server.post("/v3/completions", rng.randbytes(length)) == 412
    assert server.post("/v1/completions", b'{"prompt": "a", "max_tokens": 1}') == 200


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


def test_completion_log_probabilities_cover_the_text_and_are_streamed(client):
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
def test_constrained_completion_is_one_of_the_allowed_texts(client, fields):
    answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, extra_body=fields)
    assert answer.choices[0].text in ("red", "green")
    assert answer.choices[0].finish_reason == "stop"
