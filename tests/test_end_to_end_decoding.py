"""What the real server process tells of its tokens, and what they are allowed to be."""

from __future__ import annotations

import json

import openai
import pytest

from tests.real_server import NAME, PROMPT, client, server

__all__ = ["client", "server"]


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


def test_best_of_returns_the_likeliest_candidates(server):
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
def test_constrained_completion_is_one_of_the_allowed_texts(client, fields):
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
