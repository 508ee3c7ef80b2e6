from __future__ import annotations

import numpy as np

from fastovms.api.embeddings.embedding import (
    EmbeddingOptions,
    default_limit,
    embed,
    normalized,
)
from fastovms.api.embeddings.encoding_call import EncodingCall
from tests.api.encoder_api import served_encoder


async def test_what_other_endpoints_do():
    """With the defaults of the operator."""
    served = served_encoder()
    call = EncodingCall(served, "me", {})
    options = EmbeddingOptions(default_limit(served, truncates=True))
    found = await embed(call, ["a", "b" * 100], ["input[0]", "input[1]"], options)
    assert found.num_tokens == 3 + 64
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, rtol=1e-6)
    served.tokenizing.close()


def test_nothing_has_no_length():
    rows = np.zeros((1, 3), np.float32)
    assert normalized(rows).tolist() == [[0, 0, 0]]
