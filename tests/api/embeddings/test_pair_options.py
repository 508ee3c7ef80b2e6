from __future__ import annotations

import pytest

from fastovms.api.embeddings.embedding_schemas import RerankRequest
from fastovms.api.embeddings.pair_options import read_pair_options
from fastovms.api.embeddings.pairs import PairOptions
from fastovms.encoding import Task
from tests.api.encoder_api import served_encoder


@pytest.mark.parametrize(
    ("fields", "chunks", "options"),
    [
        ({}, False, PairOptions(64)),
        ({}, True, PairOptions(64, chunks=True)),
        ({"max_tokens_per_doc": 3}, False, PairOptions(64, max_document_tokens=3)),
        ({"max_tokens_per_doc": 0}, False, PairOptions(64)),
        ({"max_chunks_per_doc": 3}, False,
         PairOptions(64, chunks=True, max_chunks_per_document=3)),
        ({"truncate_prompt_tokens": 9}, True, PairOptions(9, truncates=True)),
        ({"use_activation": False}, False, PairOptions(64, uses_activation=False)),
    ],
)  # fmt: skip
def test_options(fields, chunks, options):
    served = served_encoder(Task.RERANK)
    assert read_pair_options(RerankRequest(**fields), served, chunks=chunks) == options
    served.tokenizing.close()
