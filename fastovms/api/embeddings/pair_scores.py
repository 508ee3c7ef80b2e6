"""Scores pairs of texts: by a reranker, or by how alike the vectors of an embedding model are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.api.embeddings.embedding import default_limit, normalized
from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.api.embeddings.input_texts import InputText, TextLimit, tokenize
from fastovms.api.request.prompting.prompts import context_exceeded
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.encoding import EncoderText, Task
from fastovms.errors import InvalidField
from fastovms.text.tokens.text_encoder import PairTemplate, TokenIds

Scores = NDArray[np.float32]


class Pair(NamedTuple):
    """A query and a document: positions among the texts of a request."""

    query: int
    document: int


class PairScores(NamedTuple):
    """Scores of pairs.

    Attributes:
        scores: one for each pair, 0 to 1 unless they are asked for as they are.
        num_tokens: of all pairs together.
    """

    scores: Scores
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a request that scores pairs.

    Attributes:
        query_names, document_names: their fields, for messages.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    query_names: Sequence[str]
    document_names: Sequence[str]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How pairs are scored.

    Attributes:
        max_tokens: of a pair, with what the tokenizer puts around it.
        truncates: whether pairs that are longer are cut, the longer text first.
        chunks: whether documents that do not fit are scored in parts, of which the best counts.
        max_chunks_per_document: further parts are left out; None = none are.
        max_chunks: of all pairs together.
        uses_activation: whether scores are from 0 to 1.
        priority: lower is sooner.
        max_document_tokens: to which documents are cut in any case; None = to none.
    """

    max_tokens: int
    truncates: bool = False
    chunks: bool = False
    max_chunks_per_document: int | None = None
    max_chunks: int = 10_000
    uses_activation: bool = True
    priority: int = 0
    max_document_tokens: int | None = None


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
    limit = default_limit(model, truncates=options.truncates or options.chunks)
    short = limit.at_most(options.max_document_tokens)
    found: list[TokenIds] = []
    for given, names, instruction, most in (
        (texts.queries, texts.query_names, config.query_instruction, limit),
        (texts.documents, texts.document_names, config.document_instruction, short),
    ):
        whole = [instruction + text for text in given]
        found += await tokenize(model, whole, names, most, call.client)
    encoded = [EncoderText(model.texts.enclosed(token_ids)) for token_ids in found]
    vectors = normalized(await call.encode(encoded, options.priority))
    first = len(texts.queries)
    scores = np.array([vectors[q] @ vectors[first + d] for q, d in pairs], np.float32)
    return PairScores(scores, _num_tokens(encoded))


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
    joined: list[InputText] = [
        model.config.query_instruction
        + texts.queries[query]
        + model.config.document_instruction
        + texts.documents[document]
        for query, document in pairs
    ]
    names = [texts.document_names[document] for _, document in pairs]
    limit = TextLimit(options.max_tokens - model.texts.num_added, options.truncates)
    found = await tokenize(model, joined, names, limit, client)
    return [EncoderText(model.texts.enclosed(token_ids)) for token_ids in found]


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
    cuts = options.truncates or options.chunks
    whole = TextLimit(room, truncates=cuts)
    parts = options.max_chunks_per_document or options.max_chunks
    long = TextLimit(room * parts, truncates=True) if options.chunks else whole
    queries = await tokenize(model, texts.queries, texts.query_names, whole, client)
    long = long.at_most(options.max_document_tokens)
    documents = await tokenize(model, texts.documents, texts.document_names, long, client)
    found: list[EncoderText] = []
    owners: list[int] = []
    for position, (query, document) in enumerate(pairs):
        first, second = queries[query], documents[document]
        for one, other in _fitted(first, second, room, options, model, texts, (query, document)):
            found.append(EncoderText(*template.join(one, other)))
            owners.append(position)
        if len(found) > options.max_chunks:
            raise InvalidField(
                f"documents must be at most {options.max_chunks}, each of which counts as many "
                "times as it is cut to fit the model",
                param="documents",
            )
    return found, owners


def _fitted(
    query: TokenIds,
    document: TokenIds,
    room: int,
    options: PairOptions,
    model: ServedEncoder,
    texts: PairTexts,
    pair: tuple[int, int],
) -> list[tuple[TokenIds, TokenIds]]:
    """Returns one pair that fits, or several with parts of the document."""
    if len(query) + len(document) <= room:
        return [(query, document)]
    if options.truncates:
        kept = longest_first(len(query), len(document), room)
        return [(query[: kept[0]], document[: kept[1]])]
    if options.chunks:
        query = query[: max(1, room // 2)]
        size = room - len(query)
        parts = range(0, len(document), size)[: options.max_chunks_per_document]
        return [(query, document[start : start + size]) for start in parts]
    raise context_exceeded(
        f"the pair has {len(query) + len(document)} tokens, and {options.max_tokens - room} stand "
        "around it",
        model.info,
        texts.document_names[pair[1]],
    )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how much is kept of two lengths that are more than `room` together, where one by one
    is taken of the longer."""
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half
