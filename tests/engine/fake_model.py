"""A model whose next token is a checksum of every token in its cache.

It stores token ids where a real model stores keys and values, so a wrong block table, a missing
copy or a prefix hit on the wrong block changes its text. If it has states, each is the text so far,
and its next token depends on that alone.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.kv_cache import BlockCopy, StateRows, States
from fastovms.engine.model.step_inputs import StepInputs

VOCAB_SIZE = 97


def next_token(context: Sequence[int]) -> int:
    """Returns the most likely token after `context`: mostly the token seven positions before, so
    that drafts are often right, and sometimes a new one, so that they are often wrong."""
    checksum = 7
    for token_id in context:
        checksum = (checksum * 31 + token_id + 1) % 1_000_003
    if len(context) > 7 and checksum % 8:
        return context[-7]
    return checksum % VOCAB_SIZE


def continue_greedily(
    prompt: Sequence[int], num_tokens: int, rope_switch_len: int = sys.maxsize
) -> list[int]:
    context = list(prompt)
    for _ in range(num_tokens):
        shift = VOCAB_SIZE * (len(context) > rope_switch_len)
        context.append(next_token([token_id + shift for token_id in context]) % VOCAB_SIZE)
    return context[len(prompt) :]


class FakeModel:
    vocab_size = VOCAB_SIZE
    is_on_gpu = False
    hidden_states: NDArray[np.float32] | None = None

    def __init__(
        self,
        block_size: int = 4,
        rope_switch_len: int | None = None,
        states: States | None = None,
    ) -> None:
        self.block_size = block_size
        self.rope_switch_len = rope_switch_len
        self.states = states
        self.bytes_per_block = 1024
        self.num_tokens_per_step: list[int] = []
        self.has_forgotten_files = False
        self._cache = np.zeros((0, block_size), np.int64)

    def available_memory(self) -> int:
        return 1 << 30

    def commit_ahead(self, num_used_blocks: int) -> bool:
        return False

    def forget_files(self) -> None:
        self.has_forgotten_files = True

    def allocate_cache(self, num_blocks: int) -> None:
        self._cache = np.full((num_blocks, self.block_size), -1, np.int64)
        if self.states is not None:
            num_drafts = self.states.max_draft_tokens
            self._state_rows = StateRows(num_blocks, self.block_size, num_drafts)
            self._states: list[list[int] | None] = [None] * self._state_rows.num_rows
            self._states[self._state_rows.zero_row] = []

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            self._cache[target] = self._cache[source]
            if self.states is not None:
                self._states[target] = self._states[source]

    def block_rows(self, block_id: int) -> list[NDArray[np.uint8]]:
        return [self._cache[block_id].view(np.uint8)]

    def accept_drafts(self, block_table: array[int], first: int, end: int) -> None:
        if self.states is not None:
            for source, target in self._state_rows.accepted(block_table, first, end):
                self._states[target] = self._states[source]

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.num_tokens_per_step.append(len(inputs.input_ids))
        token_begins = inputs.subsequence_begins
        block_begins = inputs.block_indices_begins
        contexts: dict[int, list[int]] = {}
        for s in range(len(inputs.past_lens)):
            table = inputs.block_indices[block_begins[s] : block_begins[s + 1]]
            # Of a long text all tokens are others.
            is_long = inputs.sequence_lens[s] > (self.rope_switch_len or sys.maxsize)
            for t in range(token_begins[s], token_begins[s + 1]):
                block, offset = divmod(int(inputs.position_ids[t]), self.block_size)
                self._cache[table[block], offset] = inputs.input_ids[t] + is_long * VOCAB_SIZE
            for t in range(token_begins[s], token_begins[s + 1]):
                length = int(inputs.position_ids[t]) + 1
                contexts[t] = self._cache[table].reshape(-1)[:length].tolist()
            assert max(map(len, contexts.values())) <= inputs.max_context_len
        if self.states is not None:
            contexts = self._follow_states(self._state_rows.add_to(inputs))
        logits = np.zeros((len(inputs.sampled_token_indices), self.vocab_size), np.float32)
        for row, t in enumerate(inputs.sampled_token_indices):
            assert -1 not in contexts[int(t)], "reads a position that was never written"
            logits[row] = self.logits_after(contexts[int(t)])
        return logits

    def _follow_states(self, inputs: StepInputs) -> dict[int, list[int]]:
        """Reads and writes states as OpenVINO's operations do. Returns the text before the step,
        and at each of its tokens."""
        texts: dict[int, list[int]] = {}
        row_begins, token_begins = inputs.state_row_begins, inputs.subsequence_begins
        for s, past_len in enumerate(inputs.past_lens):
            first, *written = inputs.state_rows[row_begins[s] : row_begins[s + 1]]
            text = self._states[first]
            assert text is not None, "reads a state that was never written"
            for t in range(token_begins[s], token_begins[s + 1]):
                text = texts[t] = [*text, int(inputs.input_ids[t])]
                position = past_len + t - token_begins[s] + 1
                is_last = t + 1 == token_begins[s + 1]
                if is_last or position % inputs.state_intervals[s] == 0:
                    self._states[written.pop(0)] = text
            assert not written
        return texts

    def logits_after(self, context: Sequence[int]) -> NDArray[np.float32]:
        logits = np.zeros(self.vocab_size, np.float32)
        logits[next_token(context) % VOCAB_SIZE] = 30
        return logits
