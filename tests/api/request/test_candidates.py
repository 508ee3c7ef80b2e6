"""`n`, `best_of` and beam search: what is generated, and what of it is returned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.params import BeamSearch, EarlyStopping, SamplingDefaults
from tests.fakes import model_info

V1 = "/v1/completions"
V3 = "/v3/completions"
BODY = {"model": "fake", "prompt": "ab"}
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
async def test_what_is_generated(make_api, path, fields, n, beam_search):
    api = make_api(spell)
    status, answer = await api.post(path, {**BODY, **fields})
    assert status == 200, answer
    params = api.backend.submitted[0].params
    if beam_search is not None:
        beam_search = replace(beam_search, param="best_of" if "best_of" in fields else "n")
    assert (params.n, params.beam_search) == (n, beam_search)
    assert len(answer["choices"]) == fields.get("n", 1)


async def test_a_single_beam_is_greedy(make_api):
    api = make_api(spell)
    await api.post(V1, {**BODY, **BEAMS, "temperature": 1})
    params = api.backend.submitted[0].params
    assert (params.beam_search, params.temperature, params.n) == (None, 0.0, 1)


async def test_the_models_length_penalty(make_api):
    model = model_info(defaults=SamplingDefaults(length_penalty=0.5))
    api = make_api(spell, model=model)
    await api.post(V1, {**BODY, **BEAMS, "n": 2})
    await api.post(V1, {**BODY, **BEAMS, "n": 2, "length_penalty": 2})
    searches = [request.params.beam_search for request in api.backend.submitted]
    assert [search.length_penalty for search in searches] == [0.5, 2.0]


UNLIKELY = b"ccc"
"""Each "c" has a log probability of -199 in the fake model, "a" one of -0.5."""


async def test_the_likeliest_candidates_are_returned(make_api):
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


async def test_candidates_with_log_probabilities(make_api):
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
async def test_a_beam_search_is_streamed_in_one_chunk_a_choice(make_api, path):
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
