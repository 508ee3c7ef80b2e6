"""Tests of `fastovms/api/logprobs.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.logprobs import LOWEST, TokenNames, likeliest, logprob_arrays
from fastovms.config import ApiConfig
from fastovms.params import ALL_LOGPROBS, TokenLogprobs
from fastovms.text.detokenizer import TextToken
from tests.api.completion_requests import BODY, V1, V3
from tests.fakes import EOS, FakeStream, model_info

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def names(token_id: int) -> str:
    return TokenNames(lambda token_id: bytes([token_id]))(token_id)


def entry(token_id: int, *top: int, logprob: float = -1.0, rank: int = 1) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, rank, top, [-0.5 - place for place in range(len(top))])


@pytest.mark.parametrize(
    ("found", "num_top", "expected"),
    [
        (entry(5), 0, [(5, -1.0, 1)]),
        (entry(5, 5, 6), 0, [(5, -1.0, 1)]),
        (entry(5, 5, 6), 1, [(5, -0.5, 1)]),
        (entry(5, 6, 5, rank=2), 2, [(6, -0.5, 1), (5, -1.5, 2)]),
        (entry(5, 6, 5, rank=2), 1, [(6, -0.5, 1), (5, -1.0, 2)]),
        (entry(5, 6, 7, rank=9), 2, [(6, -0.5, 1), (7, -1.5, 2), (5, -1.0, 9)]),
        (entry(5, 6, 7, rank=9), ALL_LOGPROBS, [(6, -0.5, 1), (7, -1.5, 2), (5, -1.0, 9)]),
        (entry(5, logprob=float("-inf")), 0, [(5, LOWEST, 1)]),
        (entry(5, logprob=1e-9), 0, [(5, 0.0, 1)]),
    ],
)
def test_likeliest_tokens_and_the_token_itself(found, num_top, expected):
    assert list(likeliest(found, num_top)) == expected


def test_logprob_arrays_have_names_and_offsets_of_tokens():
    arrays = logprob_arrays(
        [TextToken(97, 0, None), TextToken(0xC3, 1, entry(0xC3, 98)), TextToken(99, 1, entry(99))],
        1,
        TokenNames(lambda token_id: bytes([token_id])),
        start=10,
    )
    assert arrays.tokens == ["a", "bytes:\\xc3", "c"]
    assert arrays.token_logprobs == [None, -1.0, -1.0]
    assert arrays.top_logprobs == [None, {"b": -0.5, "bytes:\\xc3": -1.0}, {"c": -1.0}]
    assert arrays.text_offset == [10, 11, 11]
    same = TokenNames(lambda token_id: b"x")
    [top] = logprob_arrays([TextToken(1, 0, entry(3, 1, 2))], 2, same).top_logprobs
    assert top == {"x": -0.5}, "of tokens with the same text the likelier counts"


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("num_top", [0, 1, 20])
async def test_unary_logprobs_have_the_requested_alternatives(make_api, path, num_top):
    _, answer = await make_api("abc").post(path, {**BODY, "logprobs": num_top})
    logprobs = answer["choices"][0]["logprobs"]
    assert tuple(logprobs) == ARRAYS
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5, -199.0]
    assert logprobs["text_offset"] == [0, 1, 2]
    # "c" is not among the most likely tokens and is therefore added to them.
    assert [len(top) for top in logprobs["top_logprobs"]] == [max(num_top, 1)] * 2 + [num_top + 1]


async def test_offsets_count_characters_for_openai_and_bytes_for_ovms(make_api):
    for path, offsets in ((V1, [2, 2, 3, 3, 4]), (V3, [3, 3, 5, 5, 7])):
        body = {**BODY, "prompt": "aé", "logprobs": 0}
        _, answer = await make_api("éüx").post(path, {**body, "echo": True})
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["text_offset"] == [0, 1, 1, *offsets]
        _, answer = await make_api("éüx").post(path, body)
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["text_offset"] == [offset - offsets[0] for offset in offsets]


@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize(
    ("path", "prompt_offsets", "offsets"),
    [(V1, [0, 1, 2], [0, 1, 2, 3, 4, 4]), (V3, [0, 1, 4], [0, 3, 6, 7, 10, 10])],
)
async def test_offsets_count_the_replacements_of_invalid_bytes(
    make_api, path, prompt_offsets, offsets, tokens_per_step
):
    script = b"\xc3\xc3>\xff\xc3\xa9"
    api = make_api(lambda request, index: script, tokens_per_step=tokens_per_step)
    body = {**BODY, "prompt": [*b"a\xc3b"], "logprobs": 0}
    for echo, length in ((False, 0), (True, prompt_offsets[-1] + 1)):
        _, answer = await api.post(path, {**body, "echo": echo})
        [choice] = answer["choices"]
        assert choice["text"] == "a\ufffdb" * echo + "\ufffd\ufffd>\ufffdé"
        expected = prompt_offsets * echo + [length + offset for offset in offsets]
        assert choice["logprobs"]["text_offset"] == expected
        streamed = joined(await api.stream(path, {**body, "echo": echo}))
        assert streamed[0]["text_offset"] == expected


async def test_tokens_are_named_by_id_if_asked(make_api):
    body = {**BODY, "logprobs": 1, "return_tokens_as_token_ids": True, "prompt_logprobs": 0}
    _, answer = await make_api("ab").post(V1, body)
    choice = answer["choices"][0]
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:98"]
    assert choice["logprobs"]["top_logprobs"][0] == {"token_id:97": -0.5}
    assert choice["prompt_logprobs"][1]["98"]["decoded_token"] == "b"


async def test_logprobs_of_the_whole_vocabulary_are_returned_if_allowed(make_api):
    api = make_api("ab", config=ApiConfig(max_logprobs=-1))
    _, answer = await api.post(V1, {**BODY, "logprobs": -1})
    assert [len(top) for top in answer["choices"][0]["logprobs"]["top_logprobs"]] == [EOS, EOS]


async def test_prompt_logprobs_include_the_prompt_token_and_the_likeliest(make_api):
    _, answer = await make_api("z").post(V1, {**BODY, "prompt": ["ab", "cc"], "prompt_logprobs": 1})
    choices = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert choices == [
        [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}],
        [
            None,
            {
                "100": {"logprob": -0.5, "rank": 1, "decoded_token": "d"},
                "99": {"logprob": -199.0, "rank": 200, "decoded_token": "c"},
            },
        ],
    ]
    assert answer["choices"][0]["logprobs"] is None


async def test_prompt_logprobs_and_echoed_logprobs_have_their_own_numbers(make_api):
    api = make_api("z")
    _, answer = await api.post(
        V1,
        {**BODY, "prompt_logprobs": 3, "logprobs": 1, "echo": True},
    )
    choice = answer["choices"][0]
    assert len(choice["prompt_logprobs"][1]) == 3
    assert [top and len(top) for top in choice["logprobs"]["top_logprobs"]] == [None, 1, 1]
    assert [request.params.prompt_logprobs for request in api.backend.submitted] == [3]


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["ab", "c"], "n": 2}])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
async def test_echo_has_logprobs_of_prompt_and_completion(make_api, path, fields, max_tokens):
    """The request of evaluation harnesses: arrays over prompt and completion, null first."""
    api = make_api("zyx")
    body = {**BODY, "echo": True, "logprobs": 1, "max_tokens": max_tokens, **fields}
    _, answer = await api.post(path, body)
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        prompt = "c" if choice["index"] > 1 else "ab"
        assert choice["text"] == prompt + "zyx"[:max_tokens]
        assert logprobs["tokens"] == list(choice["text"])
        assert logprobs["text_offset"] == list(range(len(choice["text"])))
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        assert None not in logprobs["token_logprobs"][1:]
        assert choice["finish_reason"] == ("stop" if max_tokens == 4 else "length")
    assert answer["usage"]["completion_tokens"] == len(answer["choices"]) * max_tokens
    streamed = joined(await api.stream(path, body))
    assert streamed == whole(answer)
    assert api.backend.stats().num_running == 0


async def test_return_token_ids_includes_prompt_and_completion_ids(make_api):
    api = make_api("zy")
    body = {**BODY, "return_token_ids": True, "prompt": ["ab", "c"]}
    _, answer = await api.post(V1, body)
    assert [(choice["prompt_token_ids"], choice["token_ids"]) for choice in answer["choices"]] == [
        ([97, 98], [122, 121]),
        ([99], [122, 121]),
    ]
    assert answer["choices"][0]["logprobs"] is None
    events = await api.stream(V1, body)
    chunks = [event["choices"][0] for event in events[:-1]]
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [
        [97, 98],
        [99],
    ]
    for index in (0, 1):
        ids = [t for chunk in chunks if chunk["index"] == index for t in chunk["token_ids"]]
        assert ids == [122, 121]


def whole(answer: dict) -> dict[int, dict]:
    return {
        choice["index"]: {
            "text": choice["text"],
            "finish_reason": choice["finish_reason"],
            **(choice["logprobs"] or {}),
        }
        for choice in answer["choices"]
    }


def joined(events: list) -> dict[int, dict]:
    """Returns the joined chunks of each choice in the format of `whole`."""
    assert events[-1] == "[DONE]"
    choices: dict[int, dict] = {}
    for event in events[:-1]:
        [chunk] = event["choices"]
        choice = choices.setdefault(chunk["index"], {"text": "", "finish_reason": None})
        choice["text"] += chunk["text"]
        assert choice["finish_reason"] is None, "nothing follows the end"
        choice["finish_reason"] = chunk["finish_reason"]
        for name, elements in (chunk.get("logprobs") or {}).items():
            choice[name] = choice.get(name, []) + elements
            if name == "text_offset":
                assert all(offset <= len(choice["text"].encode()) for offset in choice[name])
    return dict(sorted(choices.items()))


SCRIPT = st.lists(
    st.sampled_from([*"aé€😀 xy".encode(), 0xFF]) | st.integers(0, EOS - 1), max_size=24
)
STOPS = st.lists(st.sampled_from(["a", "é", "€x", "xyx", " ", "\ufffd", "y😀"]), max_size=3)


@pytest.mark.slow
@given(
    scripts=st.lists(SCRIPT, min_size=2, max_size=2),
    stop=STOPS,
    tokens_per_step=st.integers(1, 9),
    others_per_step=st.integers(1, 9),
    n=st.integers(1, 2),
    logprobs=st.sampled_from([None, 0, 2]),
    echo=st.booleans(),
    include_stop=st.booleans(),
    max_tokens=st.sampled_from([0, 1, 5, 40]),
    path=st.sampled_from([V1, V3]),
)
async def test_stream_adds_up_to_the_whole_answer(
    make_api, scripts, stop, tokens_per_step, others_per_step, n, logprobs, echo, include_stop,
    max_tokens, path,
):  # fmt: skip
    """Text, finish reasons, log probabilities and offsets, for all sequences of tokens: incomplete
    characters, stop strings across tokens, several tokens per step."""

    def script(request, index: int) -> list[int]:
        return scripts[index]

    body = {
        **BODY,
        "prompt": ["é", "ab"],
        "n": n,
        "max_tokens": max_tokens,
        "stop": stop,
        "logprobs": logprobs,
        "echo": echo or max_tokens == 0,
        # OVMS's streams always include the stop string.
        "include_stop_str_in_output": include_stop or path == V3,
    }
    model = model_info(max_model_len=100)
    unary_api = make_api(script, model=model, tokens_per_step=others_per_step)
    answer = await unary_api.answer(path, body)
    api = make_api(script, model=model, tokens_per_step=tokens_per_step)
    assert joined(await api.stream(path, body)) == whole(answer)
    for choice in answer["choices"]:
        arrays = choice["logprobs"]
        if arrays is not None:
            assert len({len(arrays[name]) for name in ARRAYS}) == 1
            assert arrays["text_offset"] == sorted(arrays["text_offset"])


async def test_slow_reader_gets_all_log_probabilities(make_api):
    stream = FakeStream()
    stream.writable = False
    body = {**BODY, "logprobs": 1, "stream": True}
    assert await make_api("abc").call("POST", V1, body, stream) is None
    [choice] = joined(stream.events).values()
    assert (choice["text"], choice["tokens"]) == ("abc", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("fields", "total"),
    [
        ({"logprobs": 1}, 2 * 10),
        ({"logprobs": 1, "n": 3}, 3 * 2 * 10),
        ({"logprobs": 1, "n": 1, "best_of": 3}, 3 * 2 * 10),
        ({"logprobs": 1, "prompt": ["ab", "c"]}, 2 * 2 * 10),
        ({"logprobs": 1, "echo": True, "prompt": ["ab", "c"]}, 2 * (12 + 11)),
        ({"logprobs": 4, "echo": True, "max_tokens": 0, "n": 5}, 5 * 5 * 2),
        ({"prompt_logprobs": 3}, 4 * 2),
        ({"prompt_logprobs": 3, "logprobs": 0, "echo": True}, 4 * 2 + 12),
        ({"logprobs": 0, "max_tokens": 1000}, 62),
    ],
)
async def test_log_probabilities_of_a_request_have_a_limit(make_api, fields, total):
    body = {**BODY, "max_tokens": 10, **fields}
    api = make_api("z", config=ApiConfig(max_total_logprobs=total))
    assert (await api.post(V1, body))[0] == 200
    api = make_api("z", config=ApiConfig(max_total_logprobs=total - 1))
    status, answer = await api.post(V1, body)
    named = [name for name in ("logprobs", "prompt_logprobs") if name in fields]
    assert (status, answer["error"]["param"]) == (400, named[0])
    message = answer["error"]["message"]
    assert all(word in message for word in (*named, f" {total} ", f"at most {total - 1}", "n "))
    assert api.backend.submitted == []


async def test_pending_text_of_a_slow_reader_includes_its_echo(make_api):
    body = {**BODY, "prompt": "é" * 20, "echo": True, "n": 4, "stream": True, "max_tokens": 2}
    for max_pending_chars, is_cut in ((4 * 20, True), (4 * 22, False)):
        stream = FakeStream()
        stream.writable = False
        api = make_api("ab", config=ApiConfig(max_pending_chars=max_pending_chars))
        assert await api.call("POST", V1, body, stream) is None
        assert stream.aborted is is_cut


async def test_operator_limits_the_number_of_logprobs(make_api):
    for max_logprobs, allowed, refused in ((3, 3, 4), (-1, -1, -2), (0, 0, 1)):
        api = make_api(config=ApiConfig(max_logprobs=max_logprobs))
        for field in ("logprobs", "prompt_logprobs"):
            assert (await api.post(V1, {**BODY, field: allowed}))[0] == 200
            status, answer = await api.post(V1, {**BODY, field: refused})
            assert (status, answer["error"]["param"]) == (400, field)
    api = make_api(config=ApiConfig(max_logprobs=-1))
    assert await api.refused(V1, {**BODY, "logprobs": -1, "stream": True}) == "logprobs"
