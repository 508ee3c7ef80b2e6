"""Measures how much the precisions of a model change its log probabilities."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fastovms.engine.model.model import Floats, Model, as_float32
from fastovms.engine.model.step_inputs import StepInputs, StepLayout

CHUNK: Final = 64
"""The tokens per step: more than a small step has (see `compilation`), and few enough for the
logits of a large vocabulary."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Log probabilities of one variant of a model compared with the reference's on the same tokens.

    Attributes:
        num_tokens: the number of compared predictions.
        mean_difference: the mean absolute difference of the log probability of the next token, in
            nats.
        agreement: the fraction of predictions with the same most likely token.
        mean_divergence: the mean KL divergence from the reference, in nats.
        perplexity_ratio: the perplexity of the texts as a multiple of the reference's.
    """

    num_tokens: int
    mean_difference: float
    agreement: float
    mean_divergence: float
    perplexity_ratio: float


class QualityCounter:
    """Accumulates the sums from which a `Quality` is computed, over several texts."""

    def __init__(self) -> None:
        self._num = 0
        self._differences = 0.0
        self._signed = 0.0
        self._equal = 0
        self._divergence = 0.0

    def add(self, reference: Floats, logits: Floats, next_ids: Sequence[int]) -> None:
        """Args:
        reference, logits: f32 [tokens, vocab_size], the logits after each token.
        next_ids: the token that follows each token in the text.
        """
        rows = np.arange(len(next_ids))
        weights, of_reference = _normalized(reference)
        _, of_logits = _normalized(logits)
        expected = reference[rows, next_ids] - of_reference
        found = logits[rows, next_ids] - of_logits
        self._num += len(rows)
        self._differences += float(np.abs(found - expected).sum())
        self._signed += float((found - expected).sum())
        self._equal += int((reference.argmax(axis=1) == logits.argmax(axis=1)).sum())
        shift = np.einsum("ij,ij->i", weights, reference - logits)
        self._divergence += float((shift - of_reference + of_logits).sum())

    def quality(self) -> Quality:
        """Returns the quality over all texts so far."""
        num = self._num
        return Quality(
            num,
            self._differences / num,
            self._equal / num,
            self._divergence / num,
            math.exp(-self._signed / num),
        )


def _normalized(logits: Floats) -> tuple[Floats, Floats]:
    """Returns the probabilities, and the logarithm of each row's sum of exponentials."""
    top = logits.max(axis=1, keepdims=True)
    powers = np.exp(logits - top)
    sums = powers.sum(axis=1, keepdims=True)
    logs: Floats = (top + np.log(sums))[:, 0]
    powers /= sums
    return powers, logs


def compare(
    reference: Model, others: Mapping[str, Model], texts: Sequence[Sequence[int]]
) -> dict[str, Quality]:
    """Computes texts, of at least two tokens each, with every model, a chunk at a time in turn, and
    returns the quality of each of `others` by name. Replaces the models' KV caches."""
    longest = max(map(len, texts))
    for model in (reference, *others.values()):
        model.allocate_cache(-(-longest // model.block_size))
    counters = {name: QualityCounter() for name in others}
    for text in texts:
        token_ids = array("q", text)
        for start in range(0, len(text) - 1, CHUNK):
            end = min(start + CHUNK, len(text) - 1)
            next_ids = text[start + 1 : end + 1]
            expected = chunk_logits(reference, token_ids, start, end)
            for name, model in others.items():
                found = chunk_logits(model, token_ids, start, end)
                counters[name].add(expected, found, next_ids)
    return {name: counter.quality() for name, counter in counters.items()}


def chunk_logits(model: Model, token_ids: array[int], start: int, end: int) -> Floats:
    """Returns the logits after the tokens `start` to `end` - 1 of a text, f32 [tokens, vocab_size].
    The KV of the preceding tokens must be in the first blocks of the cache."""
    return as_float32(model.infer(_inputs(token_ids, start, end, model.block_size))).copy()


def _inputs(token_ids: array[int], start: int, end: int, block_size: int) -> StepInputs:
    layout = StepLayout(block_size)
    layout.add(token_ids, start, end, array("i", range(-(-end // block_size))))
    return layout.finish(array("q", range(end - start)))
