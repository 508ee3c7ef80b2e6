"""A backend for embedding models with image support: a thread that sends texts to a process."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.sliced_process import SlicedProcess, start_process
from fastovms.config import EngineConfig
from fastovms.params import Image, ModelInfo
from fastovms.parts.embeddings.encoder import EncoderInfo
from fastovms.parts.embeddings.encoder_backend import TextsBackend, TextsJob
from fastovms.parts.embeddings.picture_worker import LoadPictures, Vector
from fastovms.parts.embeddings.pooling import find_pooling
from fastovms.parts.media.decode import PixelBound
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)

MAX_RATIO: Final = 200
"""The maximum aspect ratio of an image for Qwen's models."""

_USUAL_MULTIPLE: Final = 28
_UNLIMITED: Final = 2**31


class PictureSizes(NamedTuple):
    """The sizes to which Qwen's models resize images.

    Attributes:
        multiple: the side length in pixels of the area that one token represents.
        min_pixels, max_pixels: the limits of an image's area in pixels.
    """

    multiple: int
    min_pixels: int
    max_pixels: int

    @classmethod
    def of(cls, processor: Mapping[str, Any]) -> Self:
        """Returns the sizes in the content of a preprocessor_config.json."""
        bound = PixelBound.of(processor, _UNLIMITED)
        size, least = processor.get("size"), processor.get("min_pixels")
        if least is None and isinstance(size, Mapping):
            least = size.get("shortest_edge")
        multiple = bound.multiple if bound.multiple > 1 else _USUAL_MULTIPLE
        return cls(multiple, least if isinstance(least, int) else 0, bound.max_pixels)

    def num_tokens(self, image: Image) -> int:
        """Returns the number of tokens of an image; 0 = the model does not support its aspect
        ratio."""
        sides, unit = image.shape[:2], self.multiple
        if max(sides) // min(sides) > MAX_RATIO:
            return 0
        units = [math.floor(side / unit + 0.5) for side in sides]
        num_pixels = math.prod(units) * unit * unit
        if num_pixels > self.max_pixels:
            scale = math.sqrt(math.prod(sides) / self.max_pixels)
            units = [math.floor(side / scale / unit) for side in sides]
        elif num_pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / math.prod(sides))
            units = [math.ceil(side * scale / unit) for side in sides]
        return math.prod(units)


class PictureEncoder(TextsBackend, SlicedProcess[TextsJob, EncoderInfo]):
    """Computes embeddings in a `picture_worker` process. Clients take turns text by text."""

    name = "embeddings of images"
    items = "requests for vectors"
    work = "makes vectors"

    @property
    def encoder(self) -> EncoderInfo:
        return self._info

    # Thread

    def _compute(self, job: TextsJob) -> bool:
        """Computes the vector of the next text of a job. Returns whether further texts remain."""
        job.start(self._clock())
        index = len(job.texts) - job.num_left
        text = job.texts[index]
        job.rows[index] = self._ask(text, Vector, lambda part: None).values
        job.num_left -= 1
        self._counters.num_prompt_tokens += text.num_tokens
        if job.num_left:
            return True
        self._link.call(job.settle, job.outcome(self._clock()))
        return False


def load_pictures(
    model_dir: Path, model: ModelInfo, engine: EngineConfig, pooling: str, turn: ComputeTurn
) -> PictureEncoder:
    """Loads a model. Takes seconds, so call it in a thread. Raises ConfigurationError if a file is
    broken or the device cannot run the model. `pooling` is the operator's setting, or "auto"."""
    start = time.perf_counter()
    found = find_pooling(model_dir, pooling, model.config)
    load = LoadPictures(
        model_dir, engine.device, engine.plugin_config, found, level_in_use(), form_in_use()
    )
    backend = PictureEncoder(
        model,
        partial(start_process, "fastovms.parts.embeddings.picture_worker", load, EncoderInfo),
        max_num_queued=engine.max_num_queued_requests,
        turn=turn,
    )
    logger.info(
        "loaded %s (vectors of %d of texts and images, pooling %s), in %.1f s",
        model.name,
        backend.encoder.width,
        found.value,
        time.perf_counter() - start,
    )
    return backend
