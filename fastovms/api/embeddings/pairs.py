"""Declares pairs of texts, and what requests ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Pair(NamedTuple):
    """A query and a document: positions among the texts of a request."""

    query: int
    document: int


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
