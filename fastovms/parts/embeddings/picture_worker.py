"""The process that runs `openvino_genai.EmbeddingPipeline`, one text with its images at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

from fastovms.backends.model_process import serve_model
from fastovms.backends.processes import InputRefused
from fastovms.engine.model.devices import reason_of
from fastovms.params import Task
from fastovms.parts.embeddings.encoder import EncoderInfo, EncoderText
from fastovms.parts.embeddings.pooling import Pooling

_INSTRUCTION: Final = "Represent the user's input."
"""The default instruction, from the model card of Qwen3-VL-Embedding."""

_POOLING: Final = {
    Pooling.CLS: genai.TextEmbeddingPipeline.PoolingType.CLS,
    Pooling.MEAN: genai.TextEmbeddingPipeline.PoolingType.MEAN,
    Pooling.LAST: genai.TextEmbeddingPipeline.PoolingType.LAST_TOKEN,
}


@dataclass(frozen=True, slots=True)
class LoadPictures:
    """The request to load a model. The process answers with an `EncoderInfo` or `WorkerFailed`."""

    model_dir: Path
    device: str
    properties: Mapping[str, object]
    pooling: Pooling
    log_level: int
    log_format: str


class Vector(NamedTuple):
    """The vector of a text, f32 [width], not normalized."""

    values: NDArray[np.float32]


class Embedder:
    """The embedding pipeline of one model. Raises RuntimeError if the model cannot be loaded."""

    def __init__(self, load: LoadPictures) -> None:
        self._pipeline = genai.EmbeddingPipeline(
            load.model_dir,
            load.device,
            pooling_type=_POOLING[load.pooling],
            normalize=False,
            **load.properties,
        )
        self._tokenizer = genai.Tokenizer(load.model_dir)
        self.info = EncoderInfo(Task.EMBEDDINGS, len(self._vector("a", EncoderText(_NO_TOKENS))))

    def embed(self, asked: EncoderText) -> Vector | InputRefused:
        """Returns the vector of a text, or InputRefused if the pipeline rejects the text."""
        text = str(self._tokenizer.decode(asked.token_ids.tolist(), skip_special_tokens=False))
        try:
            return Vector(self._vector(text, asked))
        except RuntimeError as error:
            if not asked.images:
                raise
            return InputRefused(f"the model refuses the images: {reason_of(error)}", "messages")

    def _vector(self, text: str, asked: EncoderText) -> NDArray[np.float32]:
        images = [ov.Tensor(np.ascontiguousarray(image[np.newaxis])) for image in asked.images]
        found = self._pipeline.embed(
            text, images=images, embedding_prompt=asked.instruction or _INSTRUCTION
        )
        return np.array(found.embeddings.data[0])


_NO_TOKENS: Final = np.empty(0, np.int64)


def serve(connection: Connection[Any, Any]) -> None:
    """Answers a `LoadPictures`, then each `EncoderText` with a `Vector`, `InputRefused` or
    `WorkerFailed`, until the connection closes."""
    serve_model(connection, Embedder, lambda embedder, asked: embedder.embed(asked))
