from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.request.tokens.token_rules import bad_words_token_ids
from fastovms.text.tokens.tokenizer import Tokenizer
from tests.api.completions.completion_requests import BODY, V1, V3
from tests.fakes import ByteTokenizer, model_info
from tests.paths import FIXTURES


def test_bad_words_are_banned_at_the_beginning_and_after_a_space():
    tokenizer = Tokenizer.load(FIXTURES / "byte_level")
    found = bad_words_token_ids(["fox", " fox", "the"], tokenizer)
    spelt = {tokenizer.decode(token_ids) for token_ids in found}
    assert {"fox", "the"} <= spelt
    assert len(set(found)) == len(found)
    for token_ids in found:
        assert tokenizer.decode(token_ids).strip() in ("fox", "the")
    # Bytes have no token for a space with a letter: one spelling is enough.
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
def test_both_spellings_are_banned_however_many_tokens_they_have(word, banned):
    assert bad_words_token_ids([word], PieceTokenizer()) == banned


@pytest.mark.parametrize("path", [V1, V3])
async def test_rules_by_token_id(make_api, path):
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


async def test_many_bad_words_are_encoded_off_the_loop(make_api):
    api = make_api("z")
    words = [f"{number:04}" * 100 for number in range(100)]
    assert (await api.post(V1, {**BODY, "bad_words": words}))[0] == 200
    assert len(api.backend.submitted[0].params.bad_words_token_ids) == 100


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("tokens_per_step", [1, 10])
async def test_a_stop_token_ends_the_text(make_api, streamed, tokens_per_step):
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
async def test_a_stop_token_has_a_log_probability_where_it_is_shown(
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


async def test_a_logit_bias_of_bounded_size(make_api):
    model = replace(model_info(), vocab_size=20_000)
    for num_entries, expected in ((10_000, 200), (10_001, 400)):
        bias = {str(token_id): 1 for token_id in range(num_entries)}
        status, answer = await make_api("z", model=model).post(V1, {**BODY, "logit_bias": bias})
        assert status == expected
    assert answer["error"]["param"] == "logit_bias"
    assert "at most 10000 entries, not 10001" in answer["error"]["message"]
