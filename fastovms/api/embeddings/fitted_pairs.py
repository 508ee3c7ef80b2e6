"""Cuts pairs of texts to what a model reads at once, and joins their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fastovms.api.embeddings.input_texts import together_exceeded
from fastovms.api.embeddings.pairs import Pair, PairOptions, PairTexts
from fastovms.api.request.prompting.prompts import context_exceeded
from fastovms.encoding import EncoderText
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo
from fastovms.text.tokens.text_encoder import PairTemplate, TokenIds


class FittedPair(NamedTuple):
    """A pair that fits, or one part of a pair that does not.

    Attributes:
        owner: the position of the pair among those of the request.
        query_length: how many tokens of the query are kept.
        start, stop: which tokens of the document it has.
    """

    owner: int
    query_length: int
    start: int
    stop: int


class PairTokens(NamedTuple):
    """The tokens of the texts of a request, without those around them."""

    queries: Sequence[TokenIds]
    documents: Sequence[TokenIds]


def fit_pairs(
    pairs: Sequence[Pair],
    tokens: PairTokens,
    texts: PairTexts,
    options: PairOptions,
    room: int,
    model: ModelInfo,
    max_together: int,
) -> list[FittedPair]:
    """Returns what the model is to read of each pair, in order, where all have the tokens
    `max_together` at most.

    Args:
        room: how many tokens of a query and a document it reads at once.

    Raises:
        InvalidField: a pair is too long, or there is too much of them.
    """
    found: list[FittedPair] = []
    num_tokens = 0
    for owner, (query, document) in enumerate(pairs):
        length, other = len(tokens.queries[query]), len(tokens.documents[document])
        name = texts.document_names[document]
        if length + other > room and not options.truncates and not options.chunks:
            raise context_exceeded(
                f"the pair has {length + other} tokens, and {options.max_tokens - room} stand "
                "around it",
                model,
                name,
            )
        for part in _parts(owner, length, other, room, options):
            found.append(part)
            num_tokens += part.query_length + part.stop - part.start
        if len(found) > options.max_chunks:
            raise InvalidField(
                f"documents must be at most {options.max_chunks}, each of which counts as many "
                "times as it is cut to fit the model",
                param="documents",
            )
        if num_tokens > max_together:
            raise together_exceeded(max_together, name)
    return found


def _parts(
    owner: int, query: int, document: int, room: int, options: PairOptions
) -> Iterator[FittedPair]:
    """Yields one pair of texts of such lengths that fits, or several with parts of the document."""
    if query + document <= room:
        yield FittedPair(owner, query, 0, document)
    elif options.truncates:
        kept = longest_first(query, document, room)
        yield FittedPair(owner, kept[0], 0, kept[1])
    else:
        query = min(query, max(1, room // 2))
        size = room - query
        for start in range(0, document, size)[: options.max_chunks_per_document]:
            yield FittedPair(owner, query, start, min(start + size, document))


def join_pairs(
    fitted: Iterable[FittedPair], pairs: Sequence[Pair], tokens: PairTokens, template: PairTemplate
) -> list[EncoderText]:
    """Returns what the model reads, as its tokenizer joins pairs."""
    found = []
    for owner, query_length, start, stop in fitted:
        query, document = pairs[owner]
        first = tokens.queries[query][:query_length]
        second = tokens.documents[document][start:stop]
        found.append(EncoderText(*template.join(first, second)))
    return found


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how much is kept of two lengths that are more than `room` together, where one by one
    is taken of the longer."""
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half
