"""A sequence: the tokens of one sample, how many of them are computed, and where their KV lies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as TokenIds
from enum import Enum

import numpy as np

from fastovms.engine.blocks import ROOT
from fastovms.params import FinishReason, SamplingParams


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One sample of a request.

    There are no prefill and decode phases: a sequence is scheduled whenever
    `num_computed_tokens < num_tokens`, and a token is sampled in the step that catches up.

    Attributes:
        token_ids: int64, prompt and generated tokens.
        num_computed_tokens: tokens whose KV is in the cache (a prefix of `token_ids`).
        block_table: int32 ids of the KV blocks, in order. Owned through `BlockManager` only.
        prefix_node: the prefix cache's node of the last registered full block.
        num_registered_blocks: full blocks of `block_table` that the prefix cache knows.
        parent: the sample whose prompt blocks this one shares once they are computed.
    """

    __slots__ = (
        "block_table",
        "index",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "params",
        "parent",
        "prefix_node",
        "request_id",
        "rng",
        "seq_id",
        "status",
        "token_ids",
        "token_limit",
    )

    def __init__(
        self,
        seq_id: int,
        request_id: str,
        index: int,
        prompt_token_ids: TokenIds[int],
        params: SamplingParams,
        *,
        token_limit: int,
        rng: np.random.Generator,
        parent: Sequence | None = None,
    ) -> None:
        """`token_limit` is the length, prompt included, at which the sequence ends."""
        self.seq_id = seq_id
        self.request_id = request_id
        self.index = index
        self.token_ids = array("q", prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.token_limit = token_limit
        self.rng = rng
        self.parent = parent
        self.status = SequenceStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.block_table = array("i")
        self.prefix_node = ROOT
        self.num_registered_blocks = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Adds a sampled token and says whether it was the last one."""
        self.token_ids.append(token_id)
        if token_id in self.params.eos_token_ids and not self.params.ignore_eos:
            return FinishReason.STOP
        if len(self.token_ids) >= self.token_limit:
            return FinishReason.LENGTH
        return None
