"""Declares the plan of a step: which tokens of which sequences it computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.scheduling.sequence import Sequence


class Chunk(NamedTuple):
    """The next `num_tokens` tokens of a sequence: uncomputed ones, and then draft ones."""

    sequence: Sequence
    num_tokens: int


@dataclass(slots=True)
class Plan:
    """One step: block copies first, then every chunk in one inference.

    Attributes:
        num_decodes: how many chunks are of sequences that decode; they come first.
        num_decode_rows: rows of those, drafts included.
        num_prefill_tokens: how many tokens all other chunks have.
        prefill_context: how many tokens are before each of those, on average.
        admitted: the sequences that left the queue for it, including those preempted before.
    """

    chunks: list[Chunk] = field(default_factory=list)
    num_decodes: int = 0
    num_decode_rows: int = 0
    num_prefill_tokens: int = 0
    prefill_context: float = 0.0
    block_copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Takes preempted sequences out of the plan, before their blocks are freed."""
        dropped = set(sequences)
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence not in dropped]
        if self.block_copies:
            blocks = {block_id for sequence in dropped for block_id in sequence.block_table}
            self.block_copies = [copy for copy in self.block_copies if copy.target not in blocks]

    def add_prefill(self, chunk: Chunk) -> None:
        """Adds a chunk that is no decode."""
        self.chunks.append(chunk)
        context = chunk.sequence.num_computed_tokens + chunk.num_tokens / 2
        num_before = self.num_prefill_tokens
        self.num_prefill_tokens += chunk.num_tokens
        total = num_before * self.prefill_context + chunk.num_tokens * context
        self.prefill_context = total / self.num_prefill_tokens
