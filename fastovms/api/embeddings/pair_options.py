"""Reads the fields of requests that score pairs: how long a pair may be, and what a score is."""

from __future__ import annotations

from fastovms.api.embeddings.embedding_schemas import EncodingFields, RerankRequest
from fastovms.api.embeddings.encoding_options import read_limit
from fastovms.api.embeddings.pairs import PairOptions
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField


def read_pair_options(
    body: EncodingFields, model: ServedEncoder, *, chunks: bool, priority: int | None = None
) -> PairOptions:
    """Reads how pairs are scored.

    Args:
        chunks: whether documents that are too long are scored in parts, rather than refused.
        priority: that the server gives the request; None = the usual one.

    Raises:
        InvalidField: a value is out of its range.
    """
    limit = read_limit(body, model, 0)
    if limit.keeps_end:
        raise InvalidField(
            'truncation_side must be "right": of pairs the beginning is kept',
            param="truncation_side",
        )
    parts = body.max_chunks_per_doc if isinstance(body, RerankRequest) else None
    if parts is not None and parts < 1:
        raise InvalidField(
            f"max_chunks_per_doc must be at least 1, not {show(parts)}", param="max_chunks_per_doc"
        )
    length = body.max_tokens_per_doc if isinstance(body, RerankRequest) else None
    if length is not None and length < 0:
        raise InvalidField(
            f"max_tokens_per_doc must be at least 0, not {show(length)}", param="max_tokens_per_doc"
        )
    if length and model.joins_pairs:
        raise InvalidField(
            f"max_tokens_per_doc cannot be used with the model {model.info.name}, which reads a "
            "query and a document as one text",
            param="max_tokens_per_doc",
        )
    return PairOptions(
        limit.max_tokens,
        limit.truncates,
        (chunks or parts is not None) and not limit.truncates,
        parts,
        model.config.max_allowed_chunks,
        body.use_activation is not False,
        priority or 0,
        length or None,
    )
