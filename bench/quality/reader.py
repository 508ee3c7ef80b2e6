"""Finds models for which our GGUF reader builds wrong graphs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.common.numpy_decoder import NumpyDecoder
from fastovms.engine.model.compilation import load_model
from fastovms.parts.tuning.quality import chunk_logits

NUM_GREEDY: Final = 16
MAX_DIFFERENCE: Final = 1e-2
"""The largest difference of log probabilities that rounding in f32 may cause."""

MIN_AGREEMENT: Final = 0.99


class ReaderCheck(NamedTuple):
    """The comparison of the graph in f32 with the file's values in f64.

    Attributes:
        worst_difference: the largest difference of the log probabilities of the text's tokens.
        agreement: the share of positions with the same greedy token.
        num_greedy: the number of equal tokens of a greedy text, out of `NUM_GREEDY`.
    """

    worst_difference: float
    agreement: float
    num_greedy: int

    @property
    def is_right(self) -> bool:
        return self.worst_difference <= MAX_DIFFERENCE and self.agreement >= MIN_AGREEMENT


def check_reader(model_dir: Path, file: Path, text: Sequence[int]) -> ReaderCheck:
    """Compares a converted directory with its GGUF file."""
    model = load_model(model_dir, exact=True)
    num = len(text)
    model.allocate_cache(-(-(num + NUM_GREEDY) // model.block_size))
    token_ids = array("q", text)
    found = chunk_logits(model, token_ids, 0, num).astype(np.float64)
    found -= found.max(axis=1, keepdims=True)
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    token_ids.append(int(found[-1].argmax()))
    for end in range(num + 1, num + NUM_GREEDY):
        token_ids.append(int(chunk_logits(model, token_ids, end - 1, end)[0].argmax()))
    expected = NumpyDecoder(file).log_probabilities(token_ids[:-1].tolist())
    likeliest = expected.argmax(axis=1)
    rows = np.arange(num - 1)
    of_text = found[rows, text[1:]] - expected[rows, text[1:]]
    equal = [int(likeliest[num - 1 + i]) == token_ids[num + i] for i in range(NUM_GREEDY)]
    return ReaderCheck(
        float(np.abs(of_text).max()),
        float((found.argmax(axis=1) == likeliest[:num]).mean()),
        equal.index(False) if False in equal else NUM_GREEDY,
    )
