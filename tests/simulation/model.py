"""A model whose logits are a function of the tokens that it finds in its cache, and which fails on
demand; and what a request must get from it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.params import ModelInfo, SamplingDefaults
from tests.engine.fake_model import FakeModel
from tests.fakes import EOS
from tests.simulation.world import current

VOCAB_SIZE: Final = EOS + 1

# First bytes of prompts, which in a chat come after "u:", that make the model fail.
NAN, STALL = b"\x01\x02"

STALL_SECONDS: Final = 3.0
HANG_SECONDS: Final = 100.0

MODEL_FAULTS: Final = ("raise", "hang", "nan")
"""How a model may fail from some time on."""

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz .,"


def fault_of(context: Sequence[int]) -> int:
    """Returns which of the faults a prompt asks for; 0 = none."""
    first = context[2 if list(context[:2]) == [ord("u"), ord(":")] else 0]
    return first if first <= STALL else 0


def checksum_after(before: int, token: int) -> int:
    """Returns what the cache holds of a token: a checksum of it and of all before it."""
    return zlib.crc32(token.to_bytes(4), before)


def seen_after(before: int, checksum: int) -> int:
    """Returns a checksum of all that the cache holds up to a token, the token's `checksum` being
    the last. The next token depends on it, as it depends on every position in a real model."""
    return zlib.crc32(checksum.to_bytes(8, "little"), before)


def next_token(seen: int, last: int, seventh: int) -> int:
    """The likeliest token: mostly the one seven before, so that drafts are often right.

    Args:
        seen: see `seen_after`.
        last: the last token.
        seventh: the token seven before the one that is drawn; -1 = there is none.
    """
    if last == 0xC3:  # the second byte of a letter that has two
        return 0xA4
    if seventh >= 0 and seen % 5:
        return seventh if 32 <= seventh < 127 else _LETTERS[seen % len(_LETTERS)]
    if seen % 61 == 3:
        return EOS
    if seen % 13 == 1:
        return 0xC3
    return _LETTERS[seen % len(_LETTERS)]


def continue_greedily(prompt: Sequence[int], most: int, model: str) -> list[int]:
    """The tokens after a prompt, without the end of text."""
    context = list(prompt)
    checksum, seen = first_checksum(model), 0
    for token in prompt:
        checksum = checksum_after(checksum, token)
        seen = seen_after(seen, checksum)
    while len(context) < len(prompt) + most:
        token = next_token(seen, context[-1], context[-7] if len(context) > 7 else -1)
        if token == EOS:
            break
        context.append(token)
        checksum = checksum_after(checksum, token)
        seen = seen_after(seen, checksum)
    return context[len(prompt) :]


def first_checksum(model: str) -> int:
    return zlib.crc32(model.encode())


@dataclass(frozen=True)
class Pace:
    """Seconds that a step takes, and each of its tokens."""

    step: float
    token: float


class SimModel(FakeModel):
    """Takes virtual time for its steps.

    Attributes:
        fault: returns which of `MODEL_FAULTS` it has now; "" = none.
    """

    def __init__(self, block_size: int, pace: Pace, name: str) -> None:
        super().__init__(block_size)
        self._name = name
        self.fault: Callable[[], str] = lambda: ""
        self.vocab_size = VOCAB_SIZE
        self._pace = pace
        self.is_warm = False

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        num_tokens = len(inputs.input_ids)
        thread = current()
        firsts = inputs.input_ids[(inputs.position_ids == 0) | (inputs.position_ids == 2)]
        if not self.is_warm:
            self.is_warm = num_tokens == 1  # the second step of the engine's warm-up
            firsts = firsts[:0]
        if thread is not None:
            seconds = self._pace.step + self._pace.token * num_tokens
            if STALL in firsts:
                seconds += STALL_SECONDS
            if self.fault() == "hang":
                seconds += HANG_SECONDS
            thread.world.sleep(seconds)
            thread.world.note("step", *inputs.past_lens, "tokens", *inputs.input_ids)
        if self.fault() == "raise":
            raise RuntimeError("the device is gone")
        begins = inputs.subsequence_begins.tolist()
        bounds = inputs.block_indices_begins.tolist()
        positions, tokens = inputs.position_ids.tolist(), inputs.input_ids.tolist()
        sampled = {int(t): row for row, t in enumerate(inputs.sampled_token_indices)}
        logits = np.empty((len(sampled), self.vocab_size), np.float32)
        for s in range(len(inputs.past_lens)):
            table = inputs.block_indices[bounds[s] : bounds[s + 1]]
            blocks = table.tolist()
            checksum = self._checksum_before(blocks, positions[begins[s]])
            for t in range(begins[s], begins[s + 1]):
                position, token = positions[t], tokens[t]
                checksum = checksum_after(checksum, token)
                block, offset = blocks[position // self.block_size], position % self.block_size
                self._cache[block, offset] = token
                self._checksums[block, offset] = checksum
                if t in sampled:
                    context = self._cache[table].reshape(-1)[: position + 1].tolist()
                    assert -1 not in context, "reads a position that was never written"
                    seen = zlib.crc32(self._checksums[table].reshape(-1)[: position + 1].data)
                    logits[sampled[t]] = self._logits(context, seen)
        return logits

    def allocate_cache(self, num_blocks: int) -> None:
        super().allocate_cache(num_blocks)
        self._checksums = np.zeros((num_blocks, self.block_size), np.int64)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        copies = list(copies)
        super().copy_blocks(copies)
        for source, target in copies:
            self._checksums[target] = self._checksums[source]

    def block_rows(self, block_id: int) -> list[NDArray[np.uint8]]:
        return [rows[block_id].view(np.uint8) for rows in (self._cache, self._checksums)]

    def _checksum_before(self, blocks: Sequence[int], position: int) -> int:
        if position == 0:
            return first_checksum(self._name)
        block, offset = divmod(position - 1, self.block_size)
        return int(self._checksums[blocks[block], offset])

    def _logits(self, context: Sequence[int], seen: int) -> NDArray[np.float32] | float:
        if self.fault() == "nan" or (fault_of(context) == NAN and len(context) > 12):
            return np.nan
        token = next_token(seen, context[-1], context[-7] if len(context) > 7 else -1)
        return _logits_of(token, len(context) % len(_OTHERS))


_OTHERS: Final = b"abcdefghijklmnopqrstuvwxyz"
"""Tokens that may be nearly as likely as the likeliest."""


@cache
def _logits_of(token: int, shift: int) -> NDArray[np.float32]:
    logits = np.full(VOCAB_SIZE, -30, np.float32)
    logits[token] = 3
    for step, logit in ((1, 2.5), (3, 2.0), (5, 1.5)):
        other = _OTHERS[(token * 7 + shift * step) % len(_OTHERS)]
        logits[other] = max(logits[other], logit)
    return logits


def model_info(name: str, max_model_len: int) -> ModelInfo:
    return ModelInfo(
        name=name,
        created=1_700_000_000,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({EOS}),
        defaults=SamplingDefaults(),
    )
