"""Tests of `fastovms/parts/embeddings/rerank.py`."""

from __future__ import annotations

import threading

import numpy as np
import orjson
import pytest

from fastovms.errors import InvalidField, Overloaded
from fastovms.params import Task
from fastovms.parts.embeddings import rerank
from fastovms.parts.embeddings.embeddings import EncodingCall
from fastovms.parts.embeddings.rerank import (
    Pair,
    PairOptions,
    PairTexts,
    PairTokens,
    fit_pairs,
    join_pairs,
    longest_first,
    score_pairs,
)
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.text.text_encoder import PairTemplate
from tests.api.encoder_api import CLS, PAIR, SEP, served_encoder
from tests.fakes import model_info

TEXTS = PairTexts(["query"], ["document", "other"], ["query"], ["d[0]", "d[1]"])
TOKENS = PairTokens([np.arange(4)], [np.arange(10, 22), np.arange(30, 32)], np.empty(0, np.int64))
PAIRS = [Pair(0, 0), Pair(0, 1)]


@pytest.mark.parametrize(
    ("first", "second", "room"), [(3, 9, 8), (9, 3, 8), (9, 9, 8), (9, 9, 7), (5, 4, 8), (20, 1, 4)]
)
def test_longer_text_of_a_pair_is_cut_first(first, second, room):
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    found = longest_first(first, second, room)
    assert sum(found) == room
    assert sorted(found) == sorted(kept)


def fitted(options: PairOptions, max_together: int = 100) -> list[tuple[int, int, int, int]]:
    return fit_pairs(PAIRS, TOKENS, TEXTS, options, 8, model_info(), max_together)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (PairOptions(11, truncates=True), [(0, 4, 0, 4), (1, 4, 0, 2)]),
        (PairOptions(11, chunks=True), [(0, 4, 0, 4), (0, 4, 4, 8), (0, 4, 8, 12), (1, 4, 0, 2)]),
        (PairOptions(11, chunks=True, max_chunks_per_document=2),
         [(0, 4, 0, 4), (0, 4, 4, 8), (1, 4, 0, 2)]),
    ],
)  # fmt: skip
def test_pairs_are_truncated_or_split_into_chunks(options, parts):
    found = fitted(options)
    assert found == parts
    first = join_pairs(found, PAIRS, TOKENS, PAIR)[0]
    assert first.token_ids.tolist() == [CLS, 0, 1, 2, 3, SEP, 10, 11, 12, 13, SEP]
    assert first.type_ids.tolist() == [0] * 6 + [1] * 5


@pytest.mark.parametrize(
    ("options", "max_together", "param"),
    [
        (PairOptions(11), 100, "d[0]"),
        (PairOptions(11, chunks=True, max_chunks=3), 100, "documents"),
        (PairOptions(11, chunks=True), 29, "d[1]"),
        (PairOptions(11, chunks=True), 23, "d[0]"),
        (PairOptions(11, truncates=True), 13, "d[1]"),
    ],
)
def test_pairs_beyond_the_limits_are_refused(options, max_together, param):
    with pytest.raises(InvalidField) as caught:
        fitted(options, max_together)
    assert caught.value.param == param


def call_of(served: ServedEncoder) -> EncodingCall:
    return EncodingCall(served, client="me", priority=0, log_fields={})


@pytest.mark.parametrize(
    ("options", "num_tokens"),
    [
        ({"width": 2, "joins_pairs": True, "pair": None}, 7 + 6),
        ({"width": 2, "pair": None}, 7 + 6),
        ({"width": 1}, 8 + 7),
    ],
    ids=["decoder", "no pairs", "pairs"],
)
async def test_query_and_documents_have_their_instructions(make_served, options, num_tokens):
    served = make_served(Task.RERANK, query_instruction="<", document_instruction=">", **options)
    texts = PairTexts(["q"], ["ab", "c"], ["query"], ["d[0]", "d[1]"])
    limit = PairOptions(served.info.max_model_len)
    found = await score_pairs(call_of(served), texts, [Pair(0, 0), Pair(0, 1)], limit)
    [(encoded, client)] = served.backend.encoded
    assert client == "me"
    joined = [bytes(text.token_ids[text.token_ids < CLS].astype(np.uint8)) for text in encoded]
    assert joined == [b"<q>ab", b"<q>c"]
    assert found.num_tokens == num_tokens


async def test_titles_of_documents_are_named_in_a_warning(make_encoder_api):
    api = make_encoder_api(served_encoder(Task.RERANK))
    documents = [{"title": "a", "text": "b"}, "c"]
    response = await api.call("POST", "/v1/rerank", {**BODY, "documents": documents})
    warning = dict(response.headers)["Warning"]
    assert (response.status, warning) == (200, '299 - "unknown, and ignored: documents[].title"')


@pytest.mark.parametrize("truncates", [False, True])
async def test_joined_characters_have_a_limit(truncates, monkeypatch):
    """The joined string would have gigabytes."""
    monkeypatch.setattr(rerank, "_MAX_JOINED_CHARS", 1000)
    served = served_encoder(Task.RERANK, joins_pairs=True)
    call = call_of(served)
    options = PairOptions(served.info.max_model_len, truncates)

    async def score(query: str, num_documents: int) -> None:
        names = [f"d[{i}]" for i in range(num_documents)]
        texts = PairTexts([query], ["b"] * num_documents, ["query"], names)
        pairs = [Pair(0, i) for i in range(num_documents)]
        await score_pairs(call, texts, pairs, options)

    await score("a" * 19, 50)
    with pytest.raises(InvalidField, match="1000 characters together") as caught:
        await score("a" * 20, 50)
    assert caught.value.param == "query"
    assert len(served.backend.encoded) == 1


@pytest.mark.parametrize(
    ("query", "document", "param"),
    [("", "a", "query"), ("a", "", "d"), ("a" * 20_000, "a", "query"), ("a", "a" * 20_000, "d")],
)
async def test_invalid_text_is_refused_before_pairs_are_joined(make_served, query, document, param):
    served = make_served(Task.RERANK, joins_pairs=True)
    texts = PairTexts([query], [document], ["query"], ["d"])
    with pytest.raises(InvalidField) as caught:
        await score_pairs(call_of(served), texts, [Pair(0, 0)], PairOptions(64))
    assert caught.value.param == param
    assert served.texts.calls == []


async def test_many_pairs_are_joined_in_the_thread_of_the_tokenizer(make_served):
    threads = set()

    class Template(PairTemplate):
        def join(self, first, second):
            threads.add(threading.current_thread())
            return super().join(first, second)

    served = make_served(Task.RERANK, pair=Template(PAIR.ids, PAIR.type_ids))
    num_pairs = 200
    names = [f"d[{i}]" for i in range(num_pairs)]
    texts = PairTexts(["q"], [chr(48 + i % 64) for i in range(num_pairs)], ["query"], names)
    pairs = [Pair(0, i) for i in range(num_pairs)]
    options = PairOptions(64, uses_activation=False)
    found = await score_pairs(call_of(served), texts, pairs, options)
    assert found.scores.tolist() == [(48 + i % 64 + SEP) % 7 for i in range(num_pairs)]
    assert len(threads) == 1
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("num_queries", [1, 150])
async def test_vectors_of_many_pairs_are_compared(make_served, num_queries):
    served = make_served()
    documents = [f"d{i}" for i in range(150)]
    queries = [f"q{i}" for i in range(num_queries)]
    texts = PairTexts(queries, documents, queries, documents)
    pairs = [Pair(i % num_queries, i) for i in range(150)]
    found = await score_pairs(call_of(served), texts, pairs, PairOptions(64))
    [(encoded, _)] = served.backend.encoded
    rows = np.array([served.backend._row(text) for text in encoded])
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    expected = [rows[query] @ rows[num_queries + document] for query, document in pairs]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5)


BODY = {"model": "fake", "query": "q", "documents": ["a", "b", "c"]}


def sigmoid(logit: float) -> float:
    return float(1 / (1 + np.exp(-logit)))


def logit(document: str) -> float:
    return float((sum(document.encode()) + 257) % 7)


@pytest.mark.parametrize("prefix", ["/v1", "/v2", "/v3", ""])
@pytest.mark.parametrize("width", [1, 2])
async def test_rerank_sorts_documents_by_score(make_encoder_api, prefix, width):
    api = make_encoder_api(served_encoder(Task.RERANK, width=width))
    answer = await api.answer(f"{prefix}/rerank", BODY)
    scores = [sigmoid(logit(each)) for each in "abc"]
    best = sorted(range(3), key=lambda i: -scores[i])
    assert [each["index"] for each in answer["results"]] == best
    found = [each["relevance_score"] for each in answer["results"]]
    np.testing.assert_allclose(found, [scores[i] for i in best], rtol=1e-6)
    of_vllm = prefix != "/v3"
    assert ("usage" in answer) == of_vllm
    meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": 15}}
    assert answer.get("meta") == (meta if prefix == "/v2" else None)
    documents = [{"text": "abc"[i]} for i in best] if of_vllm else [None] * 3
    assert [each.get("document") for each in answer["results"]] == documents


@pytest.mark.parametrize(
    ("fields", "num_results", "has_documents"),
    [
        ({"top_n": 2}, 2, False),
        ({"top_n": 0}, 3, False),
        ({"top_n": 9, "return_documents": True}, 3, True),
        ({"documents": [{"text": "a"}, "b"]}, 2, False),
    ],
)
async def test_top_n_and_return_documents_shape_the_results(
    make_encoder_api, fields, num_results, has_documents
):
    api = make_encoder_api(served_encoder(Task.RERANK))
    _, answer = await api.post("/v3/rerank", {**BODY, **fields})
    assert len(answer["results"]) == num_results
    assert all(("document" in each) == has_documents for each in answer["results"])


async def test_scores_without_activation_are_logits(make_encoder_api):
    api = make_encoder_api(served_encoder(Task.RERANK))
    _, answer = await api.post("/v1/rerank", {**BODY, "use_activation": False})
    assert {each["relevance_score"] for each in answer["results"]} == set(map(logit, "abc"))


async def test_long_document_is_scored_in_chunks_by_ovms(make_encoder_api):
    """The best chunk's score counts, as in OVMS."""
    served = served_encoder(Task.RERANK, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "q", "documents": ["a" * 14, "b"]}
    answer = await api.answer("/v3/rerank", body)
    [(texts, _)] = served.backend.encoded
    assert [len(each.token_ids) for each in texts] == [10, 10, 6, 5]
    assert len(answer["results"]) == 2
    await api.post("/v3/rerank", {**body, "max_chunks_per_doc": 1})
    assert len(served.backend.encoded[1][0]) == 2
    status, answer = await api.post("/v1/rerank", body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"] == "documents[0]"
    await api.answer("/v1/rerank", {**body, "truncate_prompt_tokens": -1})
    assert [len(each.token_ids) for each in served.backend.encoded[2][0]] == [10, 5]


@pytest.mark.parametrize("prefix", ["/v1", "/v2", "/v3"])
async def test_max_tokens_per_doc_truncates_documents(make_encoder_api, prefix):
    served = served_encoder(Task.RERANK, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "q", "documents": ["a" * 14, "b", "c" * 4]}
    await api.answer(f"{prefix}/rerank", {**body, "max_tokens_per_doc": 3})
    [(texts, _)] = served.backend.encoded
    assert [len(each.token_ids) for each in texts] == [7, 5, 7]
    assert texts[2].token_ids.tolist() == [CLS, *b"q", SEP, *b"ccc", SEP]


async def test_max_tokens_per_doc_truncates_embedded_texts(make_encoder_api):
    served = served_encoder(Task.EMBEDDINGS, max_model_len=10)
    api = make_encoder_api(served)
    body = {"model": "fake", "query": "qqqq", "documents": ["aaaa"], "max_tokens_per_doc": 2}
    await api.answer("/v1/rerank", body)
    lengths = [len(each.token_ids) for texts, _ in served.backend.encoded for each in texts]
    assert lengths == [6, 4]


async def test_model_that_joins_pairs_refuses_max_tokens_per_doc(make_encoder_api):
    served = served_encoder(Task.RERANK, joins_pairs=True)
    status, answer = await make_encoder_api(served).post(
        "/v1/rerank", {**BODY, "max_tokens_per_doc": 3}
    )
    assert (status, answer["error"]["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize(
    ("fields", "error", "status", "words"),
    [
        ({"top_n": -1}, None, 400, "top_n must be at least 0, not -1"),
        ({"documents": ["a" * 100]}, None, 400, "maximum context length is 64 tokens"),
        ({"model": "x"}, None, 404, "The model `x` does not exist."),
        ({}, Overloaded("too many wait"), 429, "too many wait"),
    ],
)
async def test_cohere_error_has_a_message_and_retry_after(
    make_encoder_api, fields, error, status, words
):
    """Cohere's clients show the member `message` of a 4xx and obey Retry-After of a 429."""
    served = served_encoder(Task.RERANK)
    served.backend.error = error
    api = make_encoder_api(served)
    response = await api.call("POST", "/v2/rerank", {**BODY, **fields})
    assert response.status == status
    assert words in orjson.loads(response.body)["message"]
    assert ("Retry-After" in dict(response.headers)) == (status == 429)
    _, answer = await api.post("/v1/rerank", {**BODY, **fields})
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("query", None, "query is required"),
        ("query", "", "query must not be an empty string"),
        ("query", 5, "query"),
        ("documents", None, "documents is required"),
        ("documents", [], "documents must not be an empty list"),
        ("documents", ["a", ""], "documents[1] must be a string that is not empty"),
        ("documents", [{"title": "a"}], "documents[0].text must be a string"),
        ("documents", ["a"] * 5, "documents must have at most 4 entries, not 5"),
        ("documents", ["a" * 2000], "documents must have at most 4"),
        ("top_n", -1, "top_n must be at least 0, not -1"),
        ("max_chunks_per_doc", 0, "max_chunks_per_doc must be at least 1, not 0"),
        ("max_tokens_per_doc", -1, "max_tokens_per_doc must be at least 0, not -1"),
        ("rank_fields", ["text"], "rank_fields is not supported"),
        ("truncation_side", "left", 'truncation_side must be "right"'),
    ],
)
async def test_wrong_rerank_field_value_is_refused(make_encoder_api, field, value, words):
    api = make_encoder_api(served_encoder(Task.RERANK, max_allowed_chunks=4))
    status, answer = await api.post("/v3/rerank", {**BODY, field: value})
    assert status == 400
    assert words in answer["error"]
    assert api.served[0].backend.encoded == []


@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
@pytest.mark.parametrize(
    ("one", "other", "documents"),
    [("q", "a", "a"), ("q", ["a", "b"], "ab"), (["q", "r"], ["a", "b"], "ab"), (["q"], "b", "b")],
)
async def test_score_pairs_single_texts_and_lists_under_each_field_name(
    make_encoder_api, first, second, one, other, documents
):
    api = make_encoder_api(served_encoder(Task.RERANK))
    answer = await api.answer("/v1/score", {first: one, second: other})
    found = [each["score"] for each in answer["data"]]
    np.testing.assert_allclose(found, [sigmoid(logit(each)) for each in documents], rtol=1e-6)
    assert answer["usage"]["prompt_tokens"] == 5 * len(documents)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_1"),
        ({"text_1": "a", "documents": "b"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ({"text_1": [], "text_2": "b"}, "text_1"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ({"text_1": "a", "text_2": ["b"] * 5}, "text_2"),
        ({"text_1": "a", "text_2": "b" * 100}, "text_2"),
        ({"text_1": "a", "text_2": "b" * 61}, "text_2"),
    ],
)
async def test_wrong_score_field_value_is_refused(make_encoder_api, body, param):
    api = make_encoder_api(served_encoder(Task.RERANK, max_inputs=4))
    assert await api.refused("/v1/score", body) == param
