"""Generates texts of random words that the tokenizers of `bench.encoder_models` know."""

from __future__ import annotations

import random

from bench.encoder_models import vocabulary


def make_texts(num: int, shape_size: int, seed: int = 0) -> list[str]:
    """Returns texts of 10 to 200 words, most of them short.

    Args:
        shape_size: the size of the vocabulary of the words.
    """
    rng = random.Random(seed)
    words = [word for word in vocabulary(shape_size) if word.isalpha() and len(word) > 1]
    sizes = [int(10 + 190 * rng.random() ** 3) for _ in range(num)]
    return [" ".join(rng.choices(words, k=size)) for size in sizes]
