"""A served image model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastovms.api.body import FairThread
from fastovms.api.served import AnyServed, Release, no_hold
from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.model_task import (
    IMAGE_INDEX,
    check_required,
    first_integer,
    read_json,
    read_optional,
    weights_file,
)
from fastovms.config import ImageConfig
from fastovms.errors import ConfigurationError
from fastovms.params import Image, ModelInfo, Task
from fastovms.parts.images.image_backend import ImageBackend, load_images
from fastovms.parts.images.picture import StaticShape
from fastovms.parts.images.prompts import PromptReader
from fastovms.parts.media.decode import is_available
from fastovms.parts.media.image_decoder import ImageDecoder
from fastovms.server_config import ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics

_MAX_PICTURES: Final = 64
"""The maximum number of one client's pictures that wait to be decoded."""

_USUAL_TOKENS: Final = 77
"""The number of tokens that a CLIP encoder reads."""


@dataclass(frozen=True, slots=True)
class ServedImages(AnyServed):
    """An image model in memory.

    Attributes:
        decoder: decodes the pictures to edit.
        decoding: runs the decoder; clients take turns.
        prompts: computes how much of a prompt is read.
    """

    backend: ImageBackend
    config: ImageConfig
    metrics: GenerationMetrics
    decoder: ImageDecoder
    decoding: FairThread[Image]
    prompts: PromptReader
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def task(self) -> Task:
        return Task.IMAGES


def read_info(model_dir: Path, *, name: str) -> ModelInfo:
    """Returns the name of an image model, and the number of prompt tokens that it reads. Raises
    ConfigurationError if a file is missing or broken."""
    check_required(model_dir, (IMAGE_INDEX,))
    index = read_json(model_dir / IMAGE_INDEX)
    if not isinstance(index.get("_class_name"), str):
        raise ConfigurationError(f"{model_dir / IMAGE_INDEX} lacks _class_name")
    weights = weights_file(model_dir)
    names = [str(path.relative_to(model_dir)) for path in (weights.with_suffix(".xml"), weights)]
    check_required(model_dir, [*names, "vae_decoder/openvino_model.xml"])
    text = read_optional(model_dir / "text_encoder" / "config.json")
    text = text if isinstance(text, dict) else {}
    longest = first_integer([text], ("max_position_embeddings",)) or _USUAL_TOKENS
    return ModelInfo(
        name=name,
        created=int(weights.stat().st_mtime),
        max_model_len=max(1, longest),
        vocab_size=max(1, first_integer([text], ("vocab_size",)) or 1),
        eos_token_ids=frozenset(),
        config=index,
    )


def load(
    model: ModelConfig, info: ModelInfo, turn: ComputeTurn, closes: list[Callable[[], None]]
) -> ServedImages:
    """Loads a model, and appends the function that ends its decoder to `closes`. Raises
    ConfigurationError as `load_images` does, if Pillow is missing, or if adapters are requested."""
    if model.engine.serves_adapters:
        raise ConfigurationError(
            f"{model.name} generates images, for which no adapters are served: leave out "
            "--enable-lora and --lora-modules"
        )
    if not is_available():
        raise ConfigurationError(
            f"{model.name} generates images, which needs the extra vision: install fastovms with it"
        )
    given = model.images.resolution
    shape = None if given is None else StaticShape(*given)
    prompts = PromptReader.load(model.path)
    backend = load_images(model.path, info, model.engine, shape, turn)
    decoding: FairThread[Image] = FairThread(
        "pictures to decode", per_client=_MAX_PICTURES, total=4 * _MAX_PICTURES
    )
    closes.append(decoding.close)
    decoder = ImageDecoder(max_processes=1)
    closes.append(decoder.close)
    metrics = backend.metrics(model.engine.device)
    return ServedImages(backend, model.images, metrics, decoder, decoding, prompts, model.names[1:])
