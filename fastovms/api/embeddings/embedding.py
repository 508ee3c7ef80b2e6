"""Makes vectors of texts: what every endpoint does that answers with some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.api.embeddings.encoding_call import EncodingCall
from fastovms.api.embeddings.input_texts import InputText, TextLimit, tokenize
from fastovms.api.request.prompting import offload
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.encoding import EncoderText
from fastovms.errors import InvalidField

_SMALLEST: Final = 1e-12
"""The least that a vector is divided by."""

Vectors = NDArray[np.float32]


class EmbeddingOptions(NamedTuple):
    """How vectors are made of texts.

    Attributes:
        limit: how long a text may be, without what the tokenizer puts around it.
        normalizes: whether vectors have the length 1; None = as the operator wants it.
        dimensions: how many numbers of each are kept; None = all.
        adds_special_tokens: whether the tokenizer puts its tokens around each text.
        instruction: what is put before each text.
        priority: lower is sooner.
    """

    limit: TextLimit
    normalizes: bool | None = None
    dimensions: int | None = None
    adds_special_tokens: bool = True
    instruction: str = ""
    priority: int = 0


class Embeddings(NamedTuple):
    """Vectors of texts.

    Attributes:
        vectors: f32 [N, dimensions].
        num_tokens: of all texts together.
    """

    vectors: Vectors
    num_tokens: int


def default_limit(model: ServedEncoder, *, truncates: bool | None = None) -> TextLimit:
    """Returns how long a text may be where a request does not say it.

    Args:
        truncates: whether longer ones are cut; None = as the operator wants it.
    """
    length = max(1, model.info.max_model_len - model.texts.num_added)
    return TextLimit(length, model.config.truncate if truncates is None else truncates)


async def embed(
    call: EncodingCall,
    texts: Sequence[InputText],
    names: Sequence[str],
    options: EmbeddingOptions,
) -> Embeddings:
    """Returns a vector for each text, of which there is at least one.

    Args:
        names: the texts' fields, for messages.

    Raises:
        InvalidField: a text or the number of dimensions is at fault.
        BackendError: they cannot be encoded now.
    """
    model = call.model
    width = model.backend.encoder.width
    dimensions = options.dimensions
    if dimensions is not None and not 1 <= dimensions <= width:
        raise InvalidField(
            f"dimensions must be from 1 to {width}, the dimensions of {model.info.name}, not "
            f"{dimensions}",
            param="dimensions",
        )
    found = await tokenize(
        model,
        instructed(texts, options.instruction),
        names,
        options.limit,
        call.client,
        encloses=options.adds_special_tokens,
    )
    encoded = [EncoderText(token_ids) for token_ids in found]
    rows = await call.encode(encoded, options.priority)
    if dimensions is not None:
        rows = rows[:, :dimensions]
    normalizes = model.config.normalize if options.normalizes is None else options.normalizes
    if normalizes:
        rows = await offload.run(partial(normalized, rows), rows.size)
    return Embeddings(rows, sum(map(len, found)))


def instructed(texts: Sequence[InputText], instruction: str) -> Sequence[InputText]:
    """Returns texts behind an instruction, and tokens as they are."""
    if not instruction:
        return texts
    return [(instruction, text) if isinstance(text, str) else text for text in texts]


def normalized(rows: Vectors) -> Vectors:
    """Returns vectors with the length 1."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    scaled: Vectors = rows / np.maximum(lengths, _SMALLEST)[:, None].astype(np.float32)
    return scaled
