"""Texts as tokens, and what an encoder computes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.params import Image, Task


class EncoderText(NamedTuple):
    """The tokens of one text, or of a pair of texts.

    Attributes:
        token_ids: int64 [T].
        type_ids: the index of the text that each token belongs to, int64 [T]; None = all to the
            first.
        images: the images whose tags the text has.
        instruction: what a model that takes images is asked to represent; "" = the usual.
        num_further_tokens: the number of tokens of the images and of the instruction.
    """

    token_ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None = None
    images: Sequence[Image] = ()
    instruction: str = ""
    num_further_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_further_tokens


class EncodedTexts(NamedTuple):
    """The result of encoding texts.

    Attributes:
        rows: one row for each text, in order, f32 [N, width]: pooled states, not normalized, or the
            logits of a classifier.
        queue_time: seconds until the first of them was computed.
        compute_time: seconds from then to the last one.
    """

    rows: NDArray[np.float32]
    queue_time: float
    compute_time: float


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """The results that an encoder computes for a text.

    Attributes:
        task: EMBEDDINGS or RERANK.
        width: numbers for each text: the dimensions of a vector, or the logits of a classifier.
        joins_pairs: whether the two texts of a pair are encoded as one text, without tokens of the
            tokenizer between them, as for rerankers that are decoders.
    """

    task: Task
    width: int
    joins_pairs: bool = False
