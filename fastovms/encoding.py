"""Declares what layers say to each other of texts that are encoded: their tokens, and what becomes
of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Task(Enum):
    """The task of a model. The values are OVMS's names."""

    TEXT_GENERATION = "text_generation"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"


class Pooling(Enum):
    """The way from the states of all tokens to one vector."""

    CLS = "cls"
    MEAN = "mean"
    LAST = "last"


class EncoderText(NamedTuple):
    """The tokens of one text, or of a pair of texts.

    Attributes:
        token_ids: int64 [T].
        type_ids: to which text of a pair each belongs, int64 [T]; None = to the first.
    """

    token_ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None = None


class EncodedTexts(NamedTuple):
    """The result of encoding texts.

    Attributes:
        rows: one for each text, in their order, f32 [N, width]: pooled states as they are, or the
            logits of a classifier.
        queue_time: seconds until the first of them was computed.
        compute_time: seconds from there to the last one.
    """

    rows: NDArray[np.float32]
    queue_time: float
    compute_time: float


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """The result for one text.

    Attributes:
        task: EMBEDDINGS or RERANK.
        width: numbers for each text: the dimensions of a vector, or the logits of a classifier.
        joins_pairs: whether the two texts of a pair are encoded as one text, without tokens of the
            tokenizer between them, as for rerankers that are decoders.
    """

    task: Task
    width: int
    joins_pairs: bool = False
