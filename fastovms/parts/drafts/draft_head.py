"""Drafts of a draft head: one layer that reads the hidden states of the target model."""

from __future__ import annotations

from array import array
from collections import abc
from typing import Final

import numpy as np

from fastovms.engine.model.model import Floats, Model, RawLogits
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.sequence import Sequence
from fastovms.parts.drafts.draft_model import (
    Chunk,
    DraftModel,
    Follower,
)
from fastovms.parts.drafts.draft_policy import DraftPolicy, DraftRequest, SequenceDrafters

_MAX_PENDING: Final = 64
"""The number of tokens whose hidden states are kept for the next draft of their sequence, for
example during a pause. More of them are computed at once, to free their memory."""


class DraftHead(DraftModel):
    """Drafts for many sequences at once with greedy decoding, using its own KV cache.

    At position i, from 0 on, the head's inputs are token i + 1 of the sequence and the target's
    hidden state at token i; it predicts token i + 2. `observe` receives the hidden states of each
    step. Drafted tokens are computed with the head's own hidden states, and again with the target's
    once they are accepted.

    The target's hidden states of a prefix from the prefix cache are unknown. If the head's cache
    does not contain the prefix either, the head skips those positions and computes the rest as if
    it followed directly. Drafts are then less accurate; the generated text is the same.
    """

    def __init__(
        self,
        model: Model,
        *,
        token_ids: abc.Sequence[int],
        max_model_len: int,
        max_num_batched_tokens: int,
        cost: float = 0.0,
        enable_prefix_caching: bool = True,
    ) -> None:
        """Args:
        token_ids: the target's id of each token in the head's vocabulary.
        max_model_len: context length in tokens; longer sequences get no drafts.
        max_num_batched_tokens, cost, enable_prefix_caching: see `DraftModel`.
        """
        super().__init__(
            model,
            num_token_ids=len(token_ids),
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            cost=cost,
            enable_prefix_caching=enable_prefix_caching,
        )
        self._token_ids = token_ids
        self._heads: dict[int, _HeadState] = {}

    def observe(
        self, sequence: Sequence, drafters: SequenceDrafters, start: int, states: Floats
    ) -> None:
        """Stores the hidden states that a step has computed for a sequence.

        Args:
            start: the position of the first state. The last states may belong to rejected drafts.
            states: f32 [tokens, width], copied.
        """
        policy = drafters.model_policy
        if policy is None or start >= self._max_model_len:
            return
        follower = self._heads.get(sequence.seq_id)
        if follower is None or not follower.continues_at(start):
            if follower is not None:  # the sequence was preempted and restarted
                self._drop(follower)
            follower = _HeadState(sequence, drafters, policy, start)
            self._share_prefix(follower, sequence.token_ids[1:])
            follower.begin()
            self._followers[sequence.seq_id] = self._heads[sequence.seq_id] = follower
        follower.receive(states.copy())

    def _others(self, drafting: list[Follower]) -> list[Follower]:
        """Returns sequences that get no draft now, but have `_MAX_PENDING` unused hidden states."""
        others: list[Follower] = []
        chosen = set(drafting)
        for follower in list(self._heads.values()):
            if follower in chosen or follower.num_pending < _MAX_PENDING:
                continue
            follower.num_wanted = 0
            if self._prepare(follower):
                others.append(follower)
        return others

    def _follow(self, wanted: DraftRequest) -> Follower | None:
        follower = self._heads.get(wanted.sequence.seq_id)
        if follower is None:
            return None
        room = self._max_model_len - wanted.sequence.num_tokens + 1
        if room < 1:
            wanted.drafters.model_policy = None
            self._drop(follower)
            return None
        follower.num_wanted = min(wanted.num_tokens, room)
        return follower if self._prepare(follower) else None

    def _prepare(self, follower: _HeadState) -> bool:
        """Appends the sequence's new tokens. Returns whether there are tokens to compute; if no
        blocks are available, drops the sequence and returns False."""
        follower.catch_up()
        if follower.num_uncomputed_tokens == 0:
            return False
        if self._reserve(follower):
            return True
        self._drop(follower)
        return False

    def _infer(
        self, inputs: StepInputs, chunks: list[Chunk], drafting: list[Follower]
    ) -> RawLogits:
        states = [self._heads[f.sequence.seq_id].take(count) for f, count in chunks]
        logits = self._model.infer(
            inputs._replace(hidden_states=np.concatenate(states)[:, np.newaxis])
        )
        own = self._model.hidden_states
        assert own is not None, "the model is not a draft head"
        for follower, state in zip(drafting, own, strict=False):
            self._heads[follower.sequence.seq_id].own_state = state[np.newaxis].copy()
        return logits

    def _target_id(self, token_id: int) -> int:
        return int(self._token_ids[token_id])

    def _register_full_blocks(self, follower: Follower) -> None:
        if not self._heads[follower.sequence.seq_id].num_left_out:
            super()._register_full_blocks(follower)

    def _drop(self, follower: Follower) -> None:
        super()._drop(follower)
        self._heads.pop(follower.sequence.seq_id, None)


class _HeadState(Follower):
    """The head's state for one sequence. `token_ids` are the sequence's tokens from the second on,
    without the tokens at skipped positions.

    Attributes:
        num_left_out: the number of skipped positions between the cached prefix and the first known
            hidden state.
        first: the position of the first of `states`.
        states: the unused hidden states of the target, one array per step.
        own_state: the head's own hidden state at its last token, f32 [1, width].
    """

    __slots__ = ("first", "num_left_out", "own_state", "states")

    def __init__(
        self, sequence: Sequence, drafters: SequenceDrafters, policy: DraftPolicy, start: int
    ) -> None:
        super().__init__(sequence, drafters, policy)
        self.salt = array("q", sequence.token_ids[:1]).tobytes() + self.salt
        self.first = start
        self.num_left_out = 0
        self.states: list[Floats] = []
        self.own_state: Floats = np.empty((0, 0), np.float32)

    @property
    def num_pending(self) -> int:
        """The number of unused hidden states."""
        return sum(map(len, self.states))

    def begin(self) -> None:
        """Initializes the tokens with those of the cached prefix."""
        self.num_verified_tokens = self.num_computed_tokens
        self.token_ids.extend(self.sequence.token_ids[1 : 1 + self.num_computed_tokens])
        self.num_left_out = max(0, self.first - self.num_computed_tokens)

    def receive(self, states: Floats) -> None:
        """Appends hidden states, and drops those of positions in the cached prefix."""
        self.states.append(states)
        needed = min(self.num_computed_tokens, self.num_verified_tokens) + self.num_left_out
        while self.states and self.first + len(self.states[0]) <= needed:
            self.first += len(self.states.pop(0))

    def continues_at(self, position: int) -> bool:
        """Drops hidden states from `position` on, which belong to rejected drafts. Returns whether
        the remaining states end just before `position`."""
        rejected = self.first + self.num_pending - position
        while rejected > 0 and self.states:
            last = self.states.pop()
            if len(last) > rejected:
                self.states.append(last[: len(last) - rejected])
            rejected -= len(last)
        return self.first + self.num_pending == position

    def catch_up(self) -> None:
        """Appends the sequence's new tokens. Drafted tokens are dropped, because they are computed
        again with the target's hidden states."""
        num_tokens = self.num_verified_tokens
        del self.token_ids[num_tokens:]
        self.num_computed_tokens = min(self.num_computed_tokens, num_tokens)
        end = self.sequence.num_computed_tokens
        if self.continues_at(end):
            begin = num_tokens + self.num_left_out
            self.token_ids.extend(self.sequence.token_ids[begin + 1 : end + 1])
            self.num_verified_tokens = len(self.token_ids)

    def take(self, count: int) -> Floats:
        """Returns the hidden states for the next `count` tokens to compute, f32 [count, width]: the
        target's, or the head's own at a drafted token."""
        if self.num_computed_tokens >= self.num_verified_tokens:
            return self.own_state
        states = np.concatenate(self.states)
        begin = self.num_computed_tokens + self.num_left_out - self.first
        self.first += begin + count
        rest = states[begin + count :]
        self.states = [rest] if len(rest) else []
        return states[begin : begin + count]
