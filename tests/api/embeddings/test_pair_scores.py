from __future__ import annotations

import threading

import numpy as np
import pytest

from fastovms.api.embeddings import pair_scores
from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.api.embeddings.pair_scores import score_pairs
from fastovms.api.embeddings.pairs import Pair, PairOptions, PairTexts
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.text.tokens.text_encoder import PairTemplate
from tests.api.encoder_api import PAIR, SEP, served_encoder


@pytest.mark.parametrize("is_decoder", [True, False])
async def test_texts_are_joined_where_the_tokenizer_knows_no_pairs(is_decoder):
    served = served_encoder(
        Task.RERANK,
        width=2,
        joins_pairs=is_decoder,
        pair=None,
        query_instruction="<",
        document_instruction=">",
    )
    texts = PairTexts(["q"], ["ab", "c"], ["query"], ["d[0]", "d[1]"])
    options = PairOptions(served.info.max_model_len)
    call = EncodingCall(served, "me", {})
    found = await score_pairs(call, texts, [Pair(0, 0), Pair(0, 1)], options)
    [(encoded, client)] = served.backend.encoded
    assert client == "me"
    joined = [bytes(text.token_ids[1:-1].astype(np.uint8)) for text in encoded]
    assert joined == [b"<q>ab", b"<q>c"]
    assert found.num_tokens == 7 + 6
    served.tokenizing.close()


@pytest.mark.parametrize("truncates", [False, True])
async def test_a_long_query_is_not_put_before_many_documents(truncates, monkeypatch):
    """Which would be a string of gigabytes."""
    monkeypatch.setattr(pair_scores, "_MAX_JOINED_CHARS", 1000)
    served = served_encoder(Task.RERANK, joins_pairs=True)
    call = EncodingCall(served, "me", {})
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
    served.tokenizing.close()


@pytest.mark.parametrize(
    ("query", "document", "param"),
    [("", "a", "query"), ("a", "", "d"), ("a" * 20_000, "a", "query"), ("a", "a" * 20_000, "d")],
)
async def test_each_text_is_checked_before_pairs_are_joined(query, document, param):
    served = served_encoder(Task.RERANK, joins_pairs=True)
    texts = PairTexts([query], [document], ["query"], ["d"])
    with pytest.raises(InvalidField) as caught:
        await score_pairs(EncodingCall(served, "me", {}), texts, [Pair(0, 0)], PairOptions(64))
    assert caught.value.param == param
    assert served.texts.calls == []
    served.tokenizing.close()


async def test_many_pairs_are_joined_in_the_thread_of_the_tokenizer():
    threads = set()

    class Template(PairTemplate):
        def join(self, first, second):
            threads.add(threading.current_thread())
            return super().join(first, second)

    served = served_encoder(Task.RERANK, pair=Template(PAIR.ids, PAIR.type_ids))
    num_pairs = 200
    names = [f"d[{i}]" for i in range(num_pairs)]
    texts = PairTexts(["q"], [chr(48 + i % 64) for i in range(num_pairs)], ["query"], names)
    pairs = [Pair(0, i) for i in range(num_pairs)]
    options = PairOptions(64, uses_activation=False)
    found = await score_pairs(EncodingCall(served, "me", {}), texts, pairs, options)
    assert found.scores.tolist() == [(48 + i % 64 + SEP) % 7 for i in range(num_pairs)]
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    served.tokenizing.close()


@pytest.mark.parametrize("num_queries", [1, 150])
async def test_vectors_of_many_pairs_are_compared(num_queries):
    served = served_encoder()
    documents = [f"d{i}" for i in range(150)]
    queries = [f"q{i}" for i in range(num_queries)]
    texts = PairTexts(queries, documents, queries, documents)
    pairs = [Pair(i % num_queries, i) for i in range(150)]
    found = await score_pairs(EncodingCall(served, "me", {}), texts, pairs, PairOptions(64))
    [(encoded, _)] = served.backend.encoded
    rows = np.array([served.backend._row(text) for text in encoded])
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    expected = [rows[query] @ rows[num_queries + document] for query, document in pairs]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5)
    served.tokenizing.close()
