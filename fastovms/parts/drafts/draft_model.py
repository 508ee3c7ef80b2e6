"""Drafts of a second, smaller model."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from fastovms.engine.blocks import ROOT, BlockManager
from fastovms.engine.model.model import Floats, Model, RawLogits, as_bits, as_float32
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.engine.row_functions import BROKEN, likeliest
from fastovms.engine.sampler import log_sum_exp
from fastovms.engine.sequence import Sequence, SequenceStatus
from fastovms.params import SamplingParams
from fastovms.parts.drafts.draft_policy import DraftPolicy, DraftRequest, SequenceDrafters

DEFAULT_NUM_ASSISTANT_TOKENS: Final = 5

MAX_CONFIDENT_TOKENS = 16
"""The maximum length of a draft if the request sets only a confidence threshold."""

AUTOMATIC_CONFIDENCE = 0.4
"""The default minimum probability of a drafted token."""

_TOLERATED_MISSES = 3
"""The number of consecutive mostly wrong drafts before a pause."""


class DraftModel:
    """Drafts for many sequences at once with greedy decoding, using its own KV cache.

    From a sequence's first requested draft on, the draft model computes the sequence's tokens in
    chunks, within a token budget per step, and drafts once all are computed. After a wrong draft it
    continues from the last correct token. The blocks for a draft and all tokens before it are
    allocated at once; a sequence for which they are not available gets no draft.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_token_ids: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        cost: float = 0.0,
        enable_prefix_caching: bool = True,
    ) -> None:
        """Args:
        model: the draft model on its device.
        num_token_ids: token ids below this number mean the same in the draft model and the
            target.
        max_model_len: context length in tokens; longer sequences get no drafts.
        max_num_batched_tokens: the token budget of a step.
        cost: the time to draft a token as a fraction of the target's time per token.
        enable_prefix_caching: whether the draft model's KV cache reuses earlier prompts.
        """
        self.blocks = BlockManager(0, model.block_size)
        self._model = model
        self._num_token_ids = num_token_ids
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._cost = cost
        self._enable_prefix_caching = enable_prefix_caching
        self._followers: dict[int, Follower] = {}

    @property
    def bytes_per_token(self) -> float:
        """The bytes per token in the draft model's KV cache."""
        return self._model.bytes_per_block / self._model.block_size

    def allocate_cache(self, num_tokens: int) -> None:
        """Allocates a KV cache for `num_tokens` tokens."""
        size = self._model.block_size
        num_blocks = -(-num_tokens // size)
        self._model.allocate_cache(num_blocks)
        self.blocks = BlockManager(
            num_blocks, size, enable_prefix_caching=self._enable_prefix_caching
        )

    def new_policy(self, params: SamplingParams) -> DraftPolicy:
        """Returns the policy that chooses the draft lengths of one sample of a request."""
        num_tokens = params.num_assistant_tokens
        if num_tokens is None and params.assistant_confidence_threshold is not None:
            num_tokens = MAX_CONFIDENT_TOKENS
        return DraftPolicy(num_tokens, cost=self._cost, tolerated_misses=_TOLERATED_MISSES)

    def propose(self, wanted: Iterable[DraftRequest]) -> None:
        """Sets the draft tokens of the sequences that can be drafted for now. Frees the blocks of
        sequences that no longer run."""
        for follower in list(self._followers.values()):
            if follower.sequence.status is not SequenceStatus.RUNNING:
                self._drop(follower)
        followers = [f for w in wanted if (f := self._follow(w)) is not None]
        chunks = self._plan([*followers, *self._others(followers)])
        while chunks:
            chunks = [Chunk(follower, 1) for follower in self._advance(chunks)]
        for follower in followers:
            if follower.has_caught_up:
                follower.hand_over()

    def observe(
        self, sequence: Sequence, drafters: SequenceDrafters, start: int, states: Floats
    ) -> None:
        """Ignores the hidden states of a step; overridden by `DraftHead`."""

    def free(self, sequence: Sequence) -> None:
        """Frees the state of a sequence. Does nothing if the sequence is unknown."""
        follower = self._followers.get(sequence.seq_id)
        if follower is not None:
            self._drop(follower)

    def check(self) -> None:
        """Asserts that the blocks in use agree with the sequences' block tables."""
        for follower in self._followers.values():
            assert follower.num_computed_tokens <= len(follower.token_ids)
            assert (
                follower.num_computed_tokens <= len(follower.block_table) * self.blocks.block_size
            )
        self.blocks.check(follower.block_table for follower in self._followers.values())

    def _others(self, drafting: list[Follower]) -> list[Follower]:
        """Returns further sequences whose tokens are computed in this step without drafting."""
        return []

    def _follow(self, wanted: DraftRequest) -> Follower | None:
        """Updates and returns the draft model's state of a sequence; None = the sequence gets no
        draft."""
        sequence, drafters, policy, num_tokens = wanted
        follower = self._followers.get(sequence.seq_id)
        if follower is None:
            follower = Follower(sequence, drafters, policy)
        new_token_ids = follower.catch_up_tokens()
        is_foreign = max(new_token_ids, default=0) >= self._num_token_ids
        room = self._max_model_len - sequence.num_tokens + 1  # the last draft token is not computed
        if is_foreign or room < 1:
            drafters.model_policy = None
            self._drop(follower)
            return None
        follower.num_wanted = min(num_tokens, room)
        if not follower.block_table:
            self._share_prefix(follower, sequence.token_ids)
        if not self._reserve(follower):
            self._drop(follower)
            return None
        self._followers[sequence.seq_id] = follower
        return follower

    def _share_prefix(self, follower: Follower, token_ids: array[int]) -> None:
        """Assigns the cached blocks that hold a prefix of `token_ids` to a sequence."""
        match = self.blocks.match_prefix(token_ids, follower.salt)
        self.blocks.share(match.block_ids)
        follower.block_table.extend(match.block_ids)
        follower.num_computed_tokens = len(match.block_ids) * self.blocks.block_size
        follower.num_registered_blocks = len(match.block_ids)
        follower.prefix_node = match.node

    def _reserve(self, follower: Follower) -> bool:
        """Allocates the blocks for a whole draft and all tokens before it. Returns False if not
        enough blocks are free."""
        blocks = self.blocks
        num_drafted = max(0, follower.num_wanted - 1)  # the last draft token is not computed
        num_blocks = blocks.num_blocks_for(len(follower.token_ids) + num_drafted)
        num_missing = num_blocks - len(follower.block_table)
        if num_missing > blocks.num_free_blocks:
            return False
        follower.block_table.extend(blocks.allocate() for _ in range(num_missing))
        return True

    def _plan(self, followers: list[Follower]) -> list[Chunk]:
        """Returns the chunks to compute in this step. Sequences with the fewest uncomputed tokens
        come first, so that a long prompt does not delay others."""
        budget = self._max_num_batched_tokens
        chunks: list[Chunk] = []
        for follower in sorted(followers, key=lambda f: f.num_uncomputed_tokens):
            num_tokens = min(follower.num_uncomputed_tokens, budget)
            if num_tokens == 0:
                break
            chunks.append(Chunk(follower, num_tokens))
            budget -= num_tokens
        return chunks

    def _advance(self, chunks: list[Chunk]) -> list[Follower]:
        """Computes the chunks, drafts one token for each sequence that has caught up, and returns
        the sequences that continue drafting."""
        layout = StepLayout(self.blocks.block_size)
        token_indices = array("q")
        drafting: list[Follower] = []
        for follower, num_tokens in chunks:
            start = follower.num_computed_tokens
            end = start + num_tokens
            last = layout.add(follower.token_ids, start, end, follower.block_table)
            if end == len(follower.token_ids) and follower.num_wanted:
                token_indices.append(last)
                drafting.append(follower)
        logits = self._infer(layout.finish(token_indices), chunks, drafting)
        logits = logits[:, : self._num_token_ids]
        for follower, num_tokens in chunks:
            follower.num_computed_tokens += num_tokens
            self._register_full_blocks(follower)
        return [
            follower
            for follower, row in zip(drafting, logits, strict=True)
            if self._append(follower, row)
        ]

    def _infer(
        self, inputs: StepInputs, chunks: list[Chunk], drafting: list[Follower]
    ) -> RawLogits:
        """Computes a step and returns the logits [drafting, vocab_size] after the last token of
        each of `drafting`."""
        return self._model.infer(inputs)

    def _append(self, follower: Follower, logits: RawLogits) -> bool:
        """Appends the most likely token if its probability is high enough. Returns whether to
        continue drafting."""
        token_id = likeliest(*as_bits(logits))
        if token_id == BROKEN:  # the logits are NaN
            return False
        if follower.threshold > 0 and _confidence(logits, token_id) < follower.threshold:
            return False
        follower.token_ids.append(self._target_id(token_id))
        return len(follower.token_ids) - follower.num_verified_tokens < follower.num_wanted

    def _target_id(self, token_id: int) -> int:
        """Returns the target's id of a token of the draft model."""
        return token_id

    def _register_full_blocks(self, follower: Follower) -> None:
        """Registers the full blocks of the sequence's own tokens in the prefix cache. These tokens,
        unlike drafted ones, never change."""
        size = self.blocks.block_size
        num_certain = min(follower.num_computed_tokens, follower.num_verified_tokens)
        for i in range(follower.num_registered_blocks, num_certain // size):
            follower.prefix_node = self.blocks.register(
                follower.block_table[i],
                follower.prefix_node,
                follower.token_ids[i * size : (i + 1) * size],
                follower.salt,
            )
            follower.num_registered_blocks = i + 1

    def _drop(self, follower: Follower) -> None:
        self.blocks.free(follower.block_table)
        self._followers.pop(follower.sequence.seq_id, None)


class Follower:
    """The draft model's state for one sequence.

    Attributes:
        threshold: the minimum probability of a drafted token.
        salt: cached prefixes are shared only between sequences with the same salt.
        token_ids: int64, the sequence's tokens, followed by the drafted ones.
        num_verified_tokens: the number of `token_ids` that are the sequence's own.
        num_computed_tokens, block_table, prefix_node, num_registered_blocks: as in `Sequence`, for
            the draft model's KV cache.
        num_wanted: the length of the next draft.
    """

    __slots__ = (
        "block_table",
        "drafters",
        "num_computed_tokens",
        "num_registered_blocks",
        "num_verified_tokens",
        "num_wanted",
        "policy",
        "prefix_node",
        "salt",
        "sequence",
        "threshold",
        "token_ids",
    )

    def __init__(self, sequence: Sequence, drafters: SequenceDrafters, policy: DraftPolicy) -> None:
        self.sequence = sequence
        self.drafters = drafters
        self.policy = policy
        self.threshold = _confidence_threshold(sequence.params)
        self.salt = sequence.cache_salt
        self.token_ids = array("q")
        self.num_verified_tokens = 0
        self.num_computed_tokens = 0
        self.block_table = array("i")
        self.prefix_node = ROOT
        self.num_registered_blocks = 0
        self.num_wanted = 0

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def has_caught_up(self) -> bool:
        """Whether all of the sequence's own tokens are computed."""
        return self.num_computed_tokens >= self.num_verified_tokens

    def catch_up_tokens(self) -> array[int]:
        """Appends the sequence's new tokens instead of the drafted ones, and returns the new
        tokens. The last token is always computed, if necessary again, to get its logits."""
        num_right = self.num_verified_tokens
        new_token_ids = self.sequence.token_ids[num_right:]
        for drafted, token_id in zip(self.token_ids[num_right:], new_token_ids, strict=False):
            if drafted != token_id:
                break
            num_right += 1
        # The KV of rejected drafts stays in the blocks. The tokens that come in their place are
        # computed at the same positions, and overwrite it before anything reads it.
        del self.token_ids[self.num_verified_tokens :]
        self.token_ids.extend(new_token_ids)
        self.num_verified_tokens = len(self.token_ids)
        self.num_computed_tokens = min(
            self.num_computed_tokens, num_right, self.num_verified_tokens - 1
        )
        return new_token_ids

    def hand_over(self) -> None:
        """Sets the sequence's draft tokens. If there are none, the policy records a rejected
        draft."""
        sequence = self.sequence
        sequence.draft_token_ids = self.token_ids[self.num_verified_tokens :]
        self.drafters.drafted_by = self.policy
        if not sequence.draft_token_ids:
            self.policy.learn(1, 0, sequence.num_tokens)


class Chunk(NamedTuple):
    """The next `num_tokens` uncomputed tokens of a sequence, to be computed in one step."""

    follower: Follower
    num_tokens: int


def _confidence_threshold(params: SamplingParams) -> float:
    if params.assistant_confidence_threshold is not None:
        return params.assistant_confidence_threshold
    return AUTOMATIC_CONFIDENCE if params.num_assistant_tokens is None else 0.0


def _confidence(logits: RawLogits, likeliest_id: int) -> float:
    """Returns the probability of the most likely token."""
    (highest,) = as_float32(logits[[likeliest_id]])
    return math.exp(float(highest) - log_sum_exp(logits))
