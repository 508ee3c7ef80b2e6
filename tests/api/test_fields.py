"""Tests of `fastovms/api/fields.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.fields import bad_words_token_ids
from fastovms.config import ApiConfig, ModelLimits
from fastovms.params import BeamSearch, EarlyStopping, SamplingDefaults, SamplingParams
from fastovms.text.tokenizer import Tokenizer
from tests.api.chat_models import chat_model
from tests.api.completion_requests import BODY, V1, V3
from tests.api.wrong_values import names
from tests.fakes import EOS, ByteTokenizer, model_info
from tests.paths import FIXTURES

# Sampling parameters of requests, models and dialects.


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (V1, {}, SamplingParams(max_tokens=16)),
        (V1, {"max_tokens": None}, SamplingParams(max_tokens=16)),
        (V1, {"max_tokens": 7}, SamplingParams(max_tokens=7)),
        (V1, {"max_tokens": 1000}, SamplingParams(max_tokens=62)),
        (V1, {"top_k": -1}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 0}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 10**30}, SamplingParams(max_tokens=16)),
        (V1, {"top_k": 5}, SamplingParams(max_tokens=16, top_k=5)),
        (V1, {"min_p": 1, "top_p": 1}, SamplingParams(max_tokens=16, min_p=1)),
        (V1, {"seed": -(2**63)}, SamplingParams(max_tokens=16, seed=-(2**63))),
        (V1, {"temperature": 0, "top_p": 0.5}, SamplingParams(16, temperature=0, top_p=0.5)),
        (V1, {"ignore_eos": True, "n": 3}, SamplingParams(max_tokens=16, ignore_eos=True, n=3)),
        (V1, {"best_of": 2, "n": 2}, SamplingParams(max_tokens=16, n=2)),
        (V1, {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.5},
         SamplingParams(16, frequency_penalty=2, presence_penalty=-2, repetition_penalty=1.5)),
        (V1, {"min_tokens": 16}, SamplingParams(16, min_tokens=16)),
        (V1, {"num_assistant_tokens": 3, "max_ngram_size": 2},
         SamplingParams(16, num_assistant_tokens=3, max_ngram_size=2)),
        (V1, {"num_assistant_tokens": 2**32 - 1, "max_ngram_size": 2**32 - 1},
         SamplingParams(16, num_assistant_tokens=32, max_ngram_size=16)),
        (V1, {"num_assistant_tokens": 0}, SamplingParams(16, num_assistant_tokens=0)),
        (V1, {"num_assistant_tokens": 0, "assistant_confidence_threshold": 0.5},
         SamplingParams(16, assistant_confidence_threshold=0.5)),
        (V1, {"prompt_logprobs": 0, "logprobs": 2},
         SamplingParams(16, prompt_logprobs=0, logprobs=2)),
        (V3, {"min_tokens": 62}, SamplingParams(top_k=40, min_tokens=62)),
        (V3, {}, SamplingParams(top_k=40)),
        (V3, {"top_k": -1}, SamplingParams()),
        (V3, {"top_k": 3, "best_of": 1}, SamplingParams(top_k=3)),
        (V3, {"seed": 2**32 - 1, "n": 2}, SamplingParams(top_k=40, seed=2**32 - 1, n=2)),
    ],
)  # fmt: skip
async def test_request_fields_become_sampling_params(make_api, path, fields, expected):
    api = make_api("x")
    await api.answer(path, {**BODY, **fields})
    params = api.backend.submitted[0].params
    assert params == replace(expected, eos_token_ids={EOS})


async def test_defaults_of_the_model_come_between_request_and_dialect(make_api):
    defaults = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
    }
    given = {"temperature": 0, "top_k": 5, "repetition_penalty": 1, "frequency_penalty": 0}
    model = model_info(defaults=SamplingDefaults(max_new_tokens=30, **defaults))
    api = make_api("x", model=model)
    for path, usual in ((V1, 16), (V3, 30)):
        for fields, max_tokens in (({}, usual), ({**given, "max_tokens": 3}, 3)):
            await api.post(path, {**BODY, **fields})
            params = api.backend.submitted[-1].params
            assert params.max_tokens == max_tokens
            expected = defaults | (given if fields else {})
            assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize("streamed", [False, True])
async def test_priority_and_cache_salt_reach_the_backend(make_api, streamed):
    api = make_api("x")
    body = {**BODY, "priority": -5, "cache_salt": "tenant", "echo": True, "logprobs": 0}
    if streamed:
        await api.stream(V1, body)
    else:
        await api.post(V1, body)
    queued = [(request.priority, request.cache_salt) for request in api.backend.submitted]
    assert set(queued) == {(-5, "tenant")}
    await api.post(V1, BODY)
    assert (api.backend.submitted[-1].priority, api.backend.submitted[-1].cache_salt) == (0, None)


# `n`, `best_of` and beam search: the number of generated and of returned texts.


BEAMS = {"use_beam_search": True}


def spell(request, index: int) -> bytes:
    return b"%d!" % index


@pytest.mark.parametrize(
    ("path", "fields", "n", "beam_search"),
    [
        (V1, {"n": 3}, 3, None),
        (V1, {"n": 2, "best_of": 2}, 2, None),
        (V1, {"n": 2, "best_of": 5}, 5, None),
        (V1, {"best_of": 3, "length_penalty": 2.0, "early_stopping": True}, 3, None),
        (V1, {**BEAMS, "n": 4}, 4, BeamSearch(4)),
        (V1, {**BEAMS, "n": 2, "best_of": 4}, 2, BeamSearch(4)),
        (V1, {**BEAMS, "n": 2, "length_penalty": 0}, 2, BeamSearch(2, length_penalty=0)),
        (V1, {**BEAMS, "n": 2, "temperature": 0, "early_stopping": "never"}, 2,
         BeamSearch(2, early_stopping=EarlyStopping.NEVER)),
        (V1, {**BEAMS, "n": 2, "early_stopping": True}, 2,
         BeamSearch(2, early_stopping=EarlyStopping.EARLY)),
        (V1, {**BEAMS, "n": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, 4,
         BeamSearch(4, num_beam_groups=2, diversity_penalty=0.5)),
        (V1, {"n": 3, "num_beam_groups": 2, "diversity_penalty": 0.5}, 3, None),
        (V3, {"n": 3}, 3, None),
        (V3, {"best_of": 1}, 1, None),
        (V3, {"best_of": 4, "n": 2, "temperature": 1}, 2, BeamSearch(4)),
        (V3, {"best_of": 4}, 1, BeamSearch(4)),
        (V3, {**BEAMS, "n": 3}, 3, BeamSearch(3)),
    ],
)  # fmt: skip
async def test_candidates_set_n_and_beam_search(make_api, path, fields, n, beam_search):
    api = make_api(spell)
    answer = await api.answer(path, {**BODY, **fields})
    params = api.backend.submitted[0].params
    if beam_search is not None:
        beam_search = replace(beam_search, param="best_of" if "best_of" in fields else "n")
    assert (params.n, params.beam_search) == (n, beam_search)
    assert len(answer["choices"]) == fields.get("n", 1)


async def test_single_beam_is_greedy(make_api):
    api = make_api(spell)
    await api.post(V1, {**BODY, **BEAMS, "temperature": 1})
    params = api.backend.submitted[0].params
    assert (params.beam_search, params.temperature, params.n) == (None, 0.0, 1)


async def test_length_penalty_defaults_to_that_of_the_model(make_api):
    model = model_info(defaults=SamplingDefaults(length_penalty=0.5))
    api = make_api(spell, model=model)
    await api.post(V1, {**BODY, **BEAMS, "n": 2})
    await api.post(V1, {**BODY, **BEAMS, "n": 2, "length_penalty": 2})
    searches = [request.params.beam_search for request in api.backend.submitted]
    assert [search.length_penalty for search in searches] == [0.5, 2.0]


UNLIKELY = b"ccc"
"""In the fake model, each "c" has a log probability of -199 and "a" one of -0.5."""


async def test_best_of_returns_the_likeliest_candidates(make_api):
    texts = [UNLIKELY, b"aac", b"aaaaa", b"ca", b""]
    api = make_api(lambda request, index: texts[index])
    body = {**BODY, "n": 2, "best_of": 5, "prompt": ["x", "yy"], "stop": "aaa"}
    _, answer = await api.post(V1, body)
    # "aaaaa" ends at its stop string and has no token left; the others compare by their mean.
    assert [choice["text"] for choice in answer["choices"]] == ["aac", "ca", "aac", "ca"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
    usage = answer["usage"]
    assert usage["completion_tokens"] == 2 * (4 + 4 + 3 + 3 + 1), "every candidate counts"
    assert usage["prompt_tokens"] == 3
    params = api.backend.submitted[0].params
    assert (params.n, params.logprobs) == (5, 0)


async def test_likeliest_candidate_has_its_log_probabilities(make_api):
    texts = [UNLIKELY, b"aa"]
    api = make_api(lambda request, index: texts[index])
    body = {**BODY, "best_of": 2, "logprobs": 2, "echo": True, "return_token_ids": True}
    _, answer = await api.post(V1, body)
    [choice] = answer["choices"]
    assert choice["text"] == "abaa"
    assert choice["logprobs"]["tokens"] == ["a", "b", "a", "a"]
    assert choice["token_ids"] == [97, 97]
    assert api.backend.submitted[0].params.logprobs == 2


@pytest.mark.parametrize("path", [V1, V3])
async def test_beam_search_is_streamed_in_one_chunk_a_choice(make_api, path):
    api = make_api(spell)
    events = await api.stream(path, {**BODY, **BEAMS, "n": 2, "prompt": ["x", "y"]})
    choices = [event["choices"][0] for event in events[:-1]]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (0, "0!", "stop"),
        (1, "1!", "stop"),
        (2, "0!", "stop"),
        (3, "1!", "stop"),
    ]
    assert events[-1] == "[DONE]"


async def test_beams_end_at_stop_strings(make_api):
    api = make_api(spell)
    _, answer = await api.post(V3, {**BODY, "best_of": 3, "n": 2, "stop": "!", "logprobs": 1})
    assert [choice["text"] for choice in answer["choices"]] == ["0", "1"]
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["0"], ["1"]]
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.slow
def test_bad_words_are_banned_at_the_beginning_and_after_a_space():
    tokenizer = Tokenizer.load(FIXTURES / "byte_level")
    found = bad_words_token_ids(["fox", " fox", "the"], tokenizer)
    spelt = {tokenizer.decode(token_ids) for token_ids in found}
    assert {"fox", "the"} <= spelt
    assert len(set(found)) == len(found)
    for token_ids in found:
        assert tokenizer.decode(token_ids).strip() in ("fox", "the")
    # Bytes have no token for a space with a letter: one spelling is sufficient.
    assert bad_words_token_ids(["ab"], ByteTokenizer()) == ((97, 98),)
    assert bad_words_token_ids([" "], ByteTokenizer()) == ((32,),)
    assert bad_words_token_ids([], ByteTokenizer()) == ()


class PieceTokenizer(ByteTokenizer):
    """Has one token for " there", but none for "there"."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        head, piece, tail = text.partition(" there")
        return [*head.encode(), *([200] if piece else []), *tail.encode()]


@pytest.mark.parametrize(
    ("word", "banned"),
    [
        ("there", (tuple(b"there"), (200,))),
        ("thereby", (tuple(b"thereby"), (200, *b"by"))),
        (" there", ((200,),)),
        ("\tthere", (tuple(b"\tthere"),)),
        ("x there", ((ord("x"), 200),)),
        ("the", (tuple(b"the"),)),
    ],
)
def test_bad_word_is_banned_in_both_spellings(word, banned):
    assert bad_words_token_ids([word], PieceTokenizer()) == banned


@pytest.mark.parametrize("path", [V1, V3])
async def test_token_rules_reach_the_backend(make_api, path):
    api = make_api("z")
    status, _ = await api.post(
        path,
        {
            **BODY,
            "logit_bias": {"0": -100, "256": 100, "98": 1.5},
            "allowed_token_ids": [5, 256, 5],
            "stop_token_ids": [7, 7, 8],
            "bad_words": ["no", "never" * 100],
        },
    )
    assert status == 200
    params = api.backend.submitted[0].params
    assert params.logit_bias == ((0, -100.0), (256, 100.0), (98, 1.5))
    assert params.allowed_token_ids == (5, 256)
    assert params.stop_token_ids == {7, 8}
    assert params.bad_words_token_ids == (tuple(b"no"), tuple(b"never" * 100))


@pytest.mark.parametrize(
    ("path", "stop", "message"),
    [
        (V1, ["#"] * 256, None),
        (V1, ["#"] * 257, "stop must have at most 256 strings, not 257"),
        (V3, ["#"] * 16, None),
        (V3, ["#"] * 17, "stop must have at most 16 strings, not 17"),
        (V1, "#" * 1024, None),
        (V1, "#" * 1025, "stop must be at most 1024 characters, not 1025"),
        (V1, ["a", "#" * 1025], "stop[1] must be at most 1024 characters, not 1025"),
        (V1, [""], "stop[0] must not be an empty string"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_stop_strings_beyond_a_limit_are_refused(make_api, path, stop, message):
    status, answer = await make_api().post(path, {**BODY, "stop": stop})
    if message is None:
        assert status == 200
    else:
        error = answer["error"]
        assert (status, error["message"] if path == V1 else error) == (400, message)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 10])
async def test_stop_token_ends_the_text(make_api, streamed, tokens_per_step):
    api = make_api("abcde", tokens_per_step=tokens_per_step)
    for fields, text in (
        ({}, "ab"),
        ({"include_stop_str_in_output": True}, "abc"),
        ({"stop": "b", "include_stop_str_in_output": True}, "ab"),
    ):
        body = {**BODY, "stop_token_ids": [ord("c")], "logprobs": 0, **fields}
        if streamed:
            chunks = [event["choices"][0] for event in (await api.stream(V1, body))[:-1]]
        else:
            chunks = (await api.post(V1, body))[1]["choices"]
        assert "".join(chunk["text"] for chunk in chunks) == text
        assert chunks[-1]["finish_reason"] == "stop"
        assert chunks[-1]["stop_reason"] == ("b" if "stop" in fields else ord("c"))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 10])
@pytest.mark.parametrize(("includes", "told"), [(False, "xyz"), (True, "xyzc")])
async def test_stop_token_has_a_log_probability_if_it_is_shown(
    make_api, includes, told, tokens_per_step, echo, streamed
):
    api = make_api("xyzcde", tokens_per_step=tokens_per_step)
    body = {**BODY, "stop_token_ids": [ord("c")], "logprobs": 1, "echo": echo}
    body |= {"include_stop_str_in_output": includes, "return_token_ids": True}
    if streamed:
        chunks = [event["choices"][0] for event in (await api.stream(V1, body))[:-1]]
    else:
        chunks = (await api.post(V1, body))[1]["choices"]
    shown = "ab" * echo + told
    assert "".join(chunk["text"] for chunk in chunks) == shown
    assert [t for chunk in chunks for t in chunk["token_ids"]] == list(told.encode())
    arrays = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"] is not None]
    assert "".join(token for part in arrays for token in part["tokens"]) == shown
    offsets = [offset for part in arrays for offset in part["text_offset"]]
    assert offsets == list(range(len(shown)))
    for name in ("token_logprobs", "top_logprobs"):
        values = [value for part in arrays for value in part[name]]
        assert len(values) == len(shown)
        assert None not in values[1 if echo else 0 :]


async def test_logit_bias_has_10000_entries_at_most(make_api):
    model = replace(model_info(), vocab_size=20_000)
    for num_entries, expected in ((10_000, 200), (10_001, 400)):
        bias = {str(token_id): 1 for token_id in range(num_entries)}
        status, answer = await make_api("z", model=model).post(V1, {**BODY, "logit_bias": bias})
        assert status == expected
    assert answer["error"]["param"] == "logit_bias"
    assert "at most 10000 entries, not 10001" in answer["error"]["message"]


# The maximum number of tokens of a request: limits of the model, its context and the operator.


async def test_limits_of_the_operator_bind_ovms_alone(make_api):
    limits = ModelLimits(max_tokens_limit=10, best_of_limit=4)
    api = make_api(limits=limits)
    for field, value in (("max_tokens", 10), ("best_of", 4)):
        status, answer = await api.post(V3, {**BODY, field: value})
        assert (status, names(field, answer["error"])) == (400, True)
        assert (await api.post(V3, {**BODY, field: value - 1}))[0] == 200
        assert (await api.post(V1, {**BODY, field: value}))[0] == 200
    await api.post(V3, BODY)
    await api.post(V1, {**BODY, "max_tokens": 50})
    assert [request.params.max_tokens for request in api.backend.submitted[-2:]] == [10, 10]


CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("max_new_tokens", "limit", "status"),
    [
        (None, 10, 200),
        (None, 63, 400),
        (100, 63, 400),
        (62, 63, 200),  # the model's own default is reduced
        (100, None, 200),
        (None, None, 200),
    ],
)
async def test_default_limit_of_the_operator_must_fit_the_context(
    make_api, max_new_tokens, limit, status
):
    """OVMS refuses it like a number that exceeds the context in a request."""
    for path, body, field in (
        ("completions", BODY, "max_tokens"),
        ("chat/completions", CHAT, "max_tokens"),
        ("responses", {"model": "fake", "input": "a"}, "max_output_tokens"),
    ):
        api = make_api(
            model=model_info(defaults=SamplingDefaults(max_new_tokens=max_new_tokens)),
            limits=ModelLimits(max_tokens_limit=limit),
            chat=chat_model(),
        )
        found, answer = await api.post(f"/v3/{path}", body)
        assert found == status, answer
        assert status == 200 or f"and {field} 63, the default)" in answer["error"]
        assert (await api.post(f"/v1/{path}", body))[0] == 200


@pytest.mark.parametrize("prompt", ["x" * 64, [5] * 64, ["a", "x" * 64], [[1], [5] * 64]])
async def test_prompt_that_fills_the_context_is_refused(make_api, prompt):
    status, answer = await make_api().post(V1, {**BODY, "prompt": prompt})
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == ("prompt[1]" if len(prompt) == 2 else "prompt")
    assert "64 tokens and one must be left to generate" in answer["error"]["message"]
    status, answer = await make_api().post(V3, {**BODY, "prompt": prompt})
    assert (status, "64 tokens" in answer["error"]) == (400, True)
    for path in (V1, V3):
        for prompt in ([5] * 300_000, "x" * 300_000, ["a", [5] * 300_000]):
            assert (await make_api().post(path, {**BODY, "prompt": prompt}))[0] == 400


async def test_max_tokens_beyond_the_context_is_refused_by_ovms(make_api):
    api = make_api()
    status, answer = await api.post(V3, {**BODY, "max_tokens": 63})
    assert status == 400
    assert "65 tokens (2 in the prompt and max_tokens 63)" in answer["error"]
    assert (await api.post(V3, {**BODY, "max_tokens": 62}))[0] == 200
    assert (await api.post(V1, {**BODY, "max_tokens": 63}))[0] == 200


async def test_prompts_and_choices_have_limits(make_api):
    api = make_api(config=ApiConfig(max_prompts=4, max_choices=6))
    for fields, param in (
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [[1]] * 5}, "prompt"),
        ({"prompt": ["a"] * 4, "n": 2}, "n"),
        ({"n": 7}, "n"),
    ):
        assert await api.refused(V1, {**BODY, **fields}) == param
    assert (await api.post(V1, {**BODY, "prompt": ["a"] * 3, "n": 2}))[0] == 200
