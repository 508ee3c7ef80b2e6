"""The inputs and results of models that encode texts."""

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
        type_ids: int64 [T], the index (0 or 1) of the text that each token belongs to; None = all
            tokens belong to the first text.
        images: the images whose tags the text has.
        instruction: what the vector of a model with image support is to represent; "" = the model's
            default.
        num_further_tokens: the number of tokens of the images and the instruction.
    """

    token_ids: NDArray[np.int64]
    type_ids: NDArray[np.int64] | None = None
    images: Sequence[Image] = ()
    instruction: str = ""
    num_further_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including those of images and the instruction."""
        return len(self.token_ids) + self.num_further_tokens


class EncodedTexts(NamedTuple):
    """The result of encoding texts.

    Attributes:
        rows: f32 [texts, width], in the order of the texts: pooled states, not normalized, or the
            logits of a classifier.
        queue_time: seconds until the computation of the first text began.
        compute_time: seconds from then until the last text was computed.
    """

    rows: NDArray[np.float32]
    queue_time: float
    compute_time: float


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """The kind of results that an encoder computes.

    Attributes:
        task: EMBEDDINGS or RERANK.
        width: the numbers per text: the dimensions of a vector, or the logits of a classifier.
        joins_pairs: whether a pair is encoded as one text without special tokens between query and
            document, as for decoder-based rerankers.
    """

    task: Task
    width: int
    joins_pairs: bool = False
