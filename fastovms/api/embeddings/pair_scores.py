"""Scores pairs of texts: by a reranker, or by how alike the vectors of an embedding model are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.api.embeddings.embedding import default_limit, instructed, normalized
from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.api.embeddings.fitted_pairs import FittedPair, PairTokens, fit_pairs, join_pairs
from fastovms.api.embeddings.input_texts import (
    InputText,
    TextLimit,
    check_texts,
    num_units,
    tokenize,
)
from fastovms.api.embeddings.pairs import Pair, PairOptions, PairTexts
from fastovms.api.request.prompting import offload
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.encoding import EncoderText, Task
from fastovms.errors import InvalidField
from fastovms.text.tokens.text_encoder import PairTemplate, TokenIds

Scores = NDArray[np.float32]

_MAX_TOKENS: Final = 2**24
"""How many tokens the pairs of a request have at most: as many as may wait for a model."""

_MAX_JOINED_CHARS: Final = 8 * _MAX_TOKENS
"""How many characters they have at most where each pair is one text: about as many."""

_PIECE_PAIRS: Final = 64
"""How many are joined at once."""


class PairScores(NamedTuple):
    """Scores of pairs.

    Attributes:
        scores: one for each pair, 0 to 1 unless they are asked for as they are.
        num_tokens: of all pairs together.
    """

    scores: Scores
    num_tokens: int


async def score_pairs(
    call: EncodingCall,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
) -> PairScores:
    """Returns a score for each pair.

    Raises:
        InvalidField: a text is at fault.
        BackendError: they cannot be scored now.
    """
    model, client = call.model, call.client
    if model.task is Task.EMBEDDINGS:
        return await _alike(call, texts, pairs, options)
    template = model.texts.pair
    if template is None or model.joins_pairs:
        encoded = await _joined(model, texts, pairs, options, client)
        owners = list(range(len(pairs)))
    else:
        encoded, owners = await _paired(model, template, texts, pairs, options, client)
    rows = await call.encode(encoded, options.priority)
    scores = np.full(len(pairs), -np.inf, np.float32)
    np.maximum.at(scores, owners, _relevance(rows, uses_activation=options.uses_activation))
    return PairScores(scores, _num_tokens(encoded))


def _relevance(logits: Scores, *, uses_activation: bool) -> Scores:
    """Returns one number for each row of one or two logits, of which the second is for "yes"."""
    margin = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    if not uses_activation:
        return margin
    scores: Scores = (1 / (1 + np.exp(-margin.astype(np.float64)))).astype(np.float32)
    return scores


async def _alike(
    call: EncodingCall, texts: PairTexts, pairs: Sequence[Pair], options: PairOptions
) -> PairScores:
    """Returns the cosines between the vectors of each pair."""
    model, config = call.model, call.model.config
    usual = default_limit(model, truncates=options.truncates or options.chunks)
    limit = replace(usual, max_together=_MAX_TOKENS)
    found: list[TokenIds] = []
    for given, names, instruction, most in (
        (texts.queries, texts.query_names, config.query_instruction, limit),
        (
            texts.documents,
            texts.document_names,
            config.document_instruction,
            limit.at_most(options.max_document_tokens),
        ),
    ):
        whole = instructed(given, instruction)
        found += await tokenize(model, whole, names, most, call.client, encloses=True)
    encoded = [EncoderText(token_ids) for token_ids in found]
    rows = await call.encode(encoded, options.priority)
    first = len(texts.queries)

    def compare() -> Scores:
        vectors = normalized(rows)
        positions = np.array(pairs) + np.array([0, first])
        return np.concatenate(
            [
                np.einsum("ij,ij->i", *np.moveaxis(vectors[piece], 1, 0))
                for piece in np.split(positions, range(_PIECE_PAIRS, len(pairs), _PIECE_PAIRS))
            ]
        )

    return PairScores(await offload.run(compare, rows.size), _num_tokens(encoded))


def _num_tokens(texts: Sequence[EncoderText]) -> int:
    return sum(len(text.token_ids) for text in texts)


async def _joined(
    model: ServedEncoder,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
    client: str,
) -> list[EncoderText]:
    """Returns pairs as one text each: the query and the document behind it."""
    room = options.max_tokens - model.texts.num_added
    limit = TextLimit(room, options.truncates, max_together=_MAX_TOKENS)
    check_texts(model, texts.queries, texts.query_names, limit)
    check_texts(model, texts.documents, texts.document_names, limit)
    before, between = model.config.query_instruction, model.config.document_instruction
    joined: list[InputText] = [
        (before, texts.queries[query], between, texts.documents[document])
        for query, document in pairs
    ]
    # A query is tokenized once for each of its documents.
    if sum(map(num_units, joined)) > _MAX_JOINED_CHARS:
        raise InvalidField(
            f"the texts of all pairs must have at most {_MAX_JOINED_CHARS} characters together, "
            "where the query counts once for each document",
            param=texts.query_names[0],
        )
    names = [texts.document_names[document] for _, document in pairs]
    found = await tokenize(model, joined, names, limit, client, encloses=True)
    return [EncoderText(token_ids) for token_ids in found]


async def _paired(
    model: ServedEncoder,
    template: PairTemplate,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
    client: str,
) -> tuple[list[EncoderText], list[int]]:
    """Returns pairs as the tokenizer joins them, and to which pair each text belongs: documents may
    be cut into several."""
    room = options.max_tokens - template.num_added
    if room < 2:
        raise InvalidField(
            f"truncate_prompt_tokens must be more than {template.num_added + 1}, since so many "
            "tokens stand around each pair",
            param="truncate_prompt_tokens",
        )
    # Nothing is longer than the context, however it is cut; documents in parts may be.
    whole = TextLimit(room, options.truncates or options.chunks, max_together=_MAX_TOKENS)
    long = whole
    if options.chunks:
        parts = options.max_chunks_per_document or options.max_chunks
        together = min(_MAX_TOKENS, room * options.max_chunks)
        long = replace(whole, max_tokens=room * parts, max_together=together)
    queries = await tokenize(model, texts.queries, texts.query_names, whole, client)
    long = long.at_most(options.max_document_tokens)
    documents = await tokenize(model, texts.documents, texts.document_names, long, client)
    tokens = PairTokens(queries, documents)
    fit = partial(fit_pairs, pairs, tokens, texts, options, room, model.info, _MAX_TOKENS)
    fitted: list[FittedPair] = fit() if len(pairs) == 1 else await model.tokenizing.run(client, fit)
    found: list[EncoderText] = []
    for start in range(0, len(fitted), _PIECE_PAIRS):
        piece = fitted[start : start + _PIECE_PAIRS]
        join = partial(join_pairs, piece, pairs, tokens, template)
        found += join() if len(fitted) == 1 else await model.tokenizing.run(client, join)
    return found, [part.owner for part in fitted]
