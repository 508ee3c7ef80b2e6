from __future__ import annotations

import numpy as np
import pytest

from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.api.embeddings.pair_scores import (
    Pair,
    PairOptions,
    PairTexts,
    longest_first,
    score_pairs,
)
from fastovms.encoding import Task
from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("first", "second", "room"), [(3, 9, 8), (9, 3, 8), (9, 9, 8), (9, 9, 7), (5, 4, 8), (20, 1, 4)]
)
def test_the_longer_is_cut_first(first, second, room):
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    found = longest_first(first, second, room)
    assert sum(found) == room
    assert sorted(found) == sorted(kept)


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
