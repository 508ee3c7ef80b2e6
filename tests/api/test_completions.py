"""Tests of `fastovms/api/completions.py`."""

from __future__ import annotations

import asyncio

import pytest

from fastovms.api.completions import make_echo
from fastovms.api.prompt import Prompt
from fastovms.text.tokenizer import Tokenizer
from tests.api.completion_requests import BODY, STREAM, V1, V3, texts
from tests.fakes import ByteTokenizer, FakeStream, model_info, token_logprobs
from tests.paths import FIXTURES

# A request with `echo` returns the prompt before its text, with its tokens.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip_special_tokens", "text"), [(True, "Hello"), (False, "<|endoftext|>Hello")]
)
def test_an_echo_of_token_ids_shows_special_tokens_where_wanted(skip_special_tokens, text):
    tokenizer = Tokenizer.load(FIXTURES / "byte_level")
    prompt = Prompt(tokenizer.encode("<|endoftext|>Hello"))
    logprobs = [None] * len(prompt.token_ids)
    echo = make_echo(prompt, logprobs, tokenizer, len, skip_special_tokens=skip_special_tokens)
    assert (echo.text, echo.length) == (text, len(text))
    assert echo.tokens[1].offset == text.index("Hello")


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["byte_level", "sentencepiece", "clean_up"])
@pytest.mark.parametrize(
    "text", ["Hello there, small world", "größe 😀 größe", "", "a", "<|endoftext|>x", "</s> y"]
)
def test_offsets_of_an_echoed_prompt(fixture, text):
    """The echoed text is the text that was sent, for any special tokens before or in it."""
    tokenizer = Tokenizer.load(FIXTURES / fixture)
    token_ids = tokenizer.encode(text)
    prompt = Prompt(token_ids, text)
    logprobs = [None, *(token_logprobs(token_id, 1) for token_id in token_ids[1:])]
    echo = make_echo(prompt, logprobs[: len(token_ids)], tokenizer, len)
    assert (echo.text, echo.length) == (text, len(text))
    offsets = [token.offset for token in echo.tokens]
    assert [token.token_id for token in echo.tokens] == token_ids
    assert offsets == sorted(offsets)
    assert not offsets or (offsets[0] == 0 and offsets[-1] <= len(text))
    if fixture == "byte_level" and text.isascii():
        pieces = [tokenizer.token_bytes(token_id).decode() for token_id in token_ids]
        starts = [len("".join(pieces[:place])) for place in range(len(pieces))]
        assert offsets == starts


# Bodies and chunks of completions, in both dialects.


async def test_unary_completion_has_the_members_of_openai(make_api):
    body = await make_api("hello").answer(V1, BODY)
    assert body == {
        "id": "cmpl-" + 32 * "0",
        "object": "text_completion",
        "created": 1_750_000_000,
        "model": "fake",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "text": "hello",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "kv_transfer_params": None,
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", ["/v3/completions", "/v3/v1/completions"])
async def test_unary_body_of_ovms(make_api, path):
    body = await make_api("hello").answer(path, BODY)
    assert set(body) == {"object", "created", "model", "choices", "usage"}
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}
    ]


# Bodies and chunks of completions, in both dialects.


async def test_streamed_completion_has_the_chunks_of_openai(make_api):
    stream = FakeStream()
    body = {**STREAM, "stream_options": {"include_usage": True}}
    assert await make_api("hi").call("POST", V1, body, stream) is None
    *chunks, usage, done = stream.events
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h", "i", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert {event["id"] for event in (*chunks, usage)} == {"cmpl-" + 32 * "0"}
    assert done == "[DONE]"
    assert len(stream.writes) == 3, "the last delta, usage and end share one write"


async def test_stream_of_ovms_opens_with_a_handshake_when_the_first_token_has_no_text(make_api):
    events = await make_api("é").stream(V3, BODY)
    assert events[0]["object"] == "text_completion.chunk"
    assert "id" not in events[0]
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["", "é", ""]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "stop"]
    events = await make_api("é").stream(V1, BODY)
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["é", ""]


async def test_continuous_usage_stats_count_tokens_in_every_chunk(make_api):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 3]
    events = await make_api("hi").stream(V1, {**BODY, "stream_options": {}})
    assert not any("usage" in event for event in events[:-1])


# The parameters of a completion's body.


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
async def test_prompt_may_be_text_or_tokens_alone_or_in_a_list(make_api, prompt):
    api = make_api("z")
    body = await api.answer(V1, {"prompt": prompt, "echo": True})
    assert body["choices"][0]["text"] == "abz"
    assert list(api.backend.submitted[0].prompt_token_ids) == [97, 98]


@pytest.mark.parametrize("path", [V1, V3])
async def test_stream_with_echo_begins_with_the_prompt(make_api, path):
    body = {**BODY, "prompt": ["ab", "c"], "n": 2, "echo": True}
    events = await make_api("zz").stream(path, body)
    assert texts(events) == {0: "abzz", 1: "abzz", 2: "czz", 3: "czz"}
    first = {e["choices"][0]["index"]: e["choices"][0]["text"] for e in reversed(events[:-1])}
    assert first == {0: "abz", 1: "abz", 2: "cz", 3: "cz"}


@pytest.mark.parametrize("path", [V1, V3])
async def test_echo_of_the_prompt_alone(make_api, path):
    api = make_api("never")
    body = {**BODY, "max_tokens": 0, "echo": True, "n": 2}
    _, answer = await api.post(path, body)
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "ab"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"]["completion_tokens"] == 0
    assert texts(await api.stream(path, body)) == {0: "ab", 1: "ab"}
    assert api.backend.submitted == []


# Completions with fakes: bodies, streams, and the model's requests.


def spell(request, index: int) -> list[int]:
    """Returns a text that distinguishes prompts and samples."""
    return [*request.prompt_token_ids, *f"-{index}!".encode()]


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
async def test_several_prompts_and_samples(make_api, tokens_per_step):
    api = make_api(spell, tokens_per_step=tokens_per_step)
    body = {**BODY, "prompt": ["x", "yy"], "n": 2, "stream_options": None}
    answer = await api.answer(V1, body)
    wanted = ["x-0!", "x-1!", "yy-0!", "yy-1!"]
    assert [choice["text"] for choice in answer["choices"]] == wanted
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 5 + 5 + 6 + 6
    assert [request.params.n for request in api.backend.submitted] == [2, 2]
    events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
    assert list(dict(sorted(texts(events).items())).values()) == wanted
    finished = [e["choices"][0]["finish_reason"] for e in events[:-2]]
    assert finished.count("stop") == 4
    assert events[-2]["usage"] == answer["usage"]


async def test_the_clients_request_id(make_api):
    api = make_api("x" * 60)
    api.backend.paused = True
    body = {**BODY, "request_id": "mine"}
    answers = [asyncio.create_task(api.post(V1, body)) for _ in range(2)]
    await asyncio.sleep(0)
    api.backend.paused = False
    api.backend.step()
    assert [(await answer)[1]["id"] for answer in answers] == ["cmpl-mine", "cmpl-mine"]
    ids = [request.request_id for request in api.backend.submitted]
    assert len(set(ids)) == 2, "two clients may choose the same id"
    assert "id" not in (await api.post(V3, body))[1]


async def test_model_may_be_left_out_in_openais_dialect(make_api):
    status, body = await make_api().post(V1, {"prompt": "a"})
    assert (status, body["model"]) == (200, "fake")


FIM = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3}


class BeginningTokenizer(ByteTokenizer):
    """Adds a token before every text."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [99] * add_special_tokens + super().encode(text)


@pytest.mark.parametrize("path", [V1, V3])
async def test_suffix_adds_the_fill_in_the_middle_tokens(make_api, path):
    body = {**BODY, "suffix": "xy", "prompt": ["a", "b"], "return_token_ids": True}
    api = make_api("z", tokenizer=ByteTokenizer(**FIM))
    _, answer = await api.post(path, body)
    inputs = [list(request.prompt_token_ids) for request in api.backend.submitted]
    assert inputs == [[1, 97, 2, 120, 121, 3], [1, 98, 2, 120, 121, 3]]
    assert [choice["text"] for choice in answer["choices"]] == ["z", "z"]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == inputs
    assert answer["usage"]["prompt_tokens"] == 12
    api = make_api("z", tokenizer=BeginningTokenizer(**FIM))
    await api.post(path, {**body, "prompt": "a"})
    await api.post(path, {**body, "prompt": [97], "add_special_tokens": False})
    inputs = [list(request.prompt_token_ids) for request in api.backend.submitted]
    assert inputs == [[99, 1, 97, 2, 120, 121, 3], [1, 97, 2, 120, 121, 3]]


async def test_prompt_and_suffix_must_fit_together(make_api):
    api = make_api("z", tokenizer=ByteTokenizer(**FIM), model=model_info(max_model_len=20))
    for suffix, status in (("x" * 14, 200), ("x" * 15, 400), ("x" * 10_000, 400)):
        found, answer = await api.post(V1, {**BODY, "suffix": suffix, "max_tokens": 1})
        assert found == status, answer
    assert answer["error"]["code"] == "context_length_exceeded"
