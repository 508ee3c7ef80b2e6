"""Tests of `fastovms/api/scoring.py`."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.api.scoring import ContentTokens, TokenAligner
from fastovms.text.detokenizer import TextToken
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Reasoning
from tests.api.test_logprobs import BODY, V1, V3, joined, whole
from tests.fakes import FakeStream, model_info, token_logprobs

# The tokens of a text are found among those of the whole answer.


def aligned(texts: list[str], tags: tuple[str, ...] = ()) -> TokenAligner:
    """Returns an aligner after tokens with these texts."""
    offsets = accumulate(map(len, texts[:-1]), initial=0)
    aligner = TokenAligner(tags)
    aligner.push("".join(texts), [TextToken(i, offset, None) for i, offset in enumerate(offsets)])
    return aligner


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.booleans(), st.text(alphabet="ab ü\ufffd", min_size=1, max_size=6))),
    st.data(),
)
def test_tokens_of_a_text_are_found_between_markup(pieces, data):
    """For any markup between them, and for any split into tokens."""
    spans = []
    whole = ""
    for place, (is_text, text) in enumerate(pieces):
        start = len(whole)
        whole += text if is_text else f"<{place}>"
        spans.append((start, len(whole)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    tokens = list(pairwise([0, *cuts, len(whole)]))
    aligner = aligned([whole[start:end] for start, end in tokens])
    told = set()
    for (is_text, text), (start, end) in zip(pieces, spans, strict=True):
        if is_text:
            of_text = [
                token for token, (s, e) in enumerate(tokens) if start <= s < end or s < start < e
            ]
            expected = [token for token in of_text if token not in told]
            told.update(expected)
            assert [token.token_id for token in aligner.take(text)] == expected


@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        (["</think>", "\n", "in", " the"], "in the", [2, 3]),
        (["</think>", "\n", "in", " the"], "in", [2]),
        (["<think>", "</think>", "t", "h"], "th", [2, 3]),
        (["</think>", "x"], "</think>", [0]),  # a text may contain the same characters
        (["</think>", "x"], "k", []),
        (["<think>", "</think>"], "k", []),
        (["<b>in", "in"], "in", [0]),
    ],
)
def test_no_piece_is_found_within_a_tag(tokens, piece, expected):
    aligner = aligned(tokens, ("<think>", "</think>"))
    assert [token.token_id for token in aligner.take(piece)] == expected


@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        # Incomplete characters, and special tokens that are skipped.
        (["<b>", "", "é", "x"], "éx", [1, 2, 3]),
        (["a", "", "b", ""], "ab", [0, 1, 2]),
        (["<b>", "", "", "a"], "a", [1, 2, 3]),
        (["a", "", "</b>"], "a", [0]),
        (["", "<b>", "a"], "a", [2]),
    ],
)
def test_tokens_without_text_belong_to_the_text_behind_them(tokens, piece, expected):
    assert [token.token_id for token in aligned(tokens).take(piece)] == expected


def test_tokens_may_come_before_their_text():
    aligner = TokenAligner()
    aligner.push("<b>H", [TextToken(0, 0, None), TextToken(1, 3, None)])
    aligner.push("ello", [TextToken(2, 5, None)])
    assert [token.token_id for token in aligner.take("He")] == [1]
    aligner.push("</b>x", [TextToken(3, 8, None), TextToken(4, 12, None)])
    assert [token.token_id for token in aligner.take("llo")] == [2]
    assert aligner.take("not there") == []
    assert [token.token_id for token in aligner.take("x")] == [4]


A_TOKEN_A_CHARACTER = "<t>hm</t>hm, a!"


@pytest.mark.parametrize(
    ("has_markup", "pieces", "expected"),
    [
        (False, [Content("<t>hm</t>"), Content("hm, a!")], [A_TOKEN_A_CHARACTER, "", ""]),
        (True, [Reasoning("hm"), Content("hm, a!")], ["", "hm, a!", ""]),
        (True, [Content("hm, a!")], ["hm, a!", ""]),
        (True, [CallBegin(0, "f"), CallArguments(0, "hm"), CallEnd(0, True)], ["", "", "", ""]),
    ],
)
def test_content_has_the_tokens_outside_reasoning_and_calls(has_markup, pieces, expected):
    content = ContentTokens(TokenAligner({"<t>", "</t>"}) if has_markup else None)
    tokens = [TextToken(ord(c), i, None) for i, c in enumerate(A_TOKEN_A_CHARACTER)]
    content.push(A_TOKEN_A_CHARACTER, tokens)
    found = [*map(content.take, pieces), content.rest()]
    assert ["".join(chr(token.token_id) for token in taken) for taken in found] == expected


@pytest.mark.parametrize("num_pushed", [1, 4, 30])
def test_content_like_a_call_before_it_has_its_own_tokens(num_pushed: int) -> None:
    """Also if the content has the same characters as a call before it."""
    text = '<c>{"add": 1}</c> add <c>{"x": "it"}</c> it'
    parts = [text[i : i + num_pushed] for i in range(0, len(text), num_pushed)]
    ends = [text.index("}") + 1, text.rindex("}") + 1]
    content = ContentTokens(TokenAligner({"<c>", "</c>"}))
    offset = 0
    for part in parts:
        tokens = [TextToken(offset + i, offset + i, None) for i in range(len(part))]
        content.push(part, tokens)
        offset += len(part)
    pieces = [CallBegin(0, "f"), CallArguments(0, '{"add": 1}'), CallEnd(0, True, ends[0]),
              Content("add"), CallBegin(1, "f"), CallArguments(1, '{"x": "it"}'),
              CallEnd(1, True, ends[1]), Content(" it")]  # fmt: skip
    found = [[token.token_id for token in content.take(piece)] for piece in pieces]
    add, it = text.index(" add") + 1, text.rindex(" it")
    assert found[3] == [add, add + 1, add + 2]
    assert found[7] == [it, it + 1, it + 2]


# Prompts are scored without generating a text.


async def test_failure_while_scoring_is_a_500(make_api):
    for fields in ({"stream": True, "max_tokens": 3}, {"max_tokens": 0}):
        api = make_api("z")
        api.backend.fail_after = 0
        stream = FakeStream()
        body = {**BODY, "prompt": ["a", "b"], "echo": True, "logprobs": 1, **fields}
        response = await api.call("POST", V1, body, stream)
        assert response.status == 500
        assert not stream.started
        assert api.backend.stats().num_running == 0


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["ab", "cd"]}])
async def test_scored_prompt_is_not_counted_as_cached(make_api, fields, max_tokens):
    """The generation after the scoring finds the prompt in the cache."""
    api = make_api("z")
    api.backend.num_cached_tokens = 1
    body = {**BODY, "echo": True, "logprobs": 1, "max_tokens": max_tokens, **fields}
    _, answer = await api.post(V1, body)
    events = await api.stream(V1, {**body, "stream_options": {"include_usage": True}})
    assert events[-2]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    _, answer = await api.post(V1, {**BODY, "prompt": ["ab", "cd"]})
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("path", [V1, V3])
@pytest.mark.parametrize("num_tokens", [62, 63, 64])
async def test_prompt_is_scored_up_to_the_whole_context(make_api, path, num_tokens):
    text = "".join(chr(ord("a") + place % 26) for place in range(num_tokens))
    api = make_api("z", model=model_info(max_model_len=64))
    body = {**BODY, "prompt": [text, "ab"], "echo": True, "logprobs": 2, "max_tokens": 0}
    answer = await api.answer(path, body)
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"] == text
    expected = [token_logprobs(ord(letter), 2).logprob for letter in text]
    assert logprobs["token_logprobs"] == [None, *expected[1:]]
    assert answer["usage"]["prompt_tokens"] == num_tokens + 2
    assert answer["usage"]["completion_tokens"] == 0
    assert joined(await api.stream(path, body)) == whole(answer)
    status, _ = await api.post(path, {**body, "prompt": "x" * 65})
    assert status == 400
