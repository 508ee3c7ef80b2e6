"""The process that runs the image pipelines of `openvino_genai`, one image at a time."""

from __future__ import annotations

import io
import json
import logging
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai
from PIL import Image as pillow

from fastovms.backends.model_process import serve_model
from fastovms.backends.processes import InputRefused, receive, send
from fastovms.engine.model.devices import reason_of
from fastovms.params import Image
from fastovms.parts.images.picture import (
    Edited,
    ImageInfo,
    ImageParams,
    StaticShape,
    partial_steps,
)

logger = logging.getLogger(__name__)

_ERROR_PREFIX: Final = "Check '"
"""The prefix of OpenVINO's error about an invalid argument."""

_PATCHED: Final = ("Flux", "StableDiffusion3", "QwenImage", "ZImage")
"""The pipelines that divide latents into patches of 2 x 2."""


@dataclass(frozen=True, slots=True)
class LoadImages:
    """The request to load a model. The process answers with an `ImageInfo` or `WorkerFailed`.

    Attributes:
        device: an OpenVINO device, or three: for the text encoder, the denoiser and the VAE.
        shape: the only size that is compiled; None = any size.
    """

    model_dir: Path
    device: str
    properties: Mapping[str, object]
    shape: StaticShape | None
    log_level: int
    log_format: str


@dataclass(frozen=True, slots=True)
class MakeImage:
    """The request for an image. The process answers with a `StepDone` after each step, to which the
    parent replies whether to continue, and finally with an `ImageMade`, `InputRefused` or
    `WorkerFailed`.

    Attributes:
        edited: the picture to edit; None = generate from the prompt alone.
        num_partials: the number of partial images that are sent with the steps.
    """

    params: ImageParams
    edited: Edited | None
    num_partials: int


class StepDone(NamedTuple):
    """Reports a complete step.

    Attributes:
        step: the number of the step, from 1.
        partial: the partial image as a base64-encoded file; None = no image at this step.
    """

    step: int
    num_steps: int
    partial: bytes | None


class ImageMade(NamedTuple):
    """Reports the end of an image.

    Attributes:
        file: the image as a base64-encoded file; empty if the parent has cancelled it.
    """

    file: bytes


class Pipelines:
    """The pipelines of one model, which share its weights. Raises RuntimeError if the model cannot
    be loaded."""

    def __init__(self, load: LoadImages) -> None:
        self._load = load
        self._connection: Connection[Any, Any] | None = None
        index = json.loads((load.model_dir / "model_index.json").read_text())
        class_name = str(index.get("_class_name"))
        faults: list[Exception] = []
        self._inpainting = self._made(genai.InpaintingPipeline, faults)
        self._editing = self._derived(genai.Image2ImagePipeline, self._inpainting, faults)
        source = self._editing or self._inpainting
        self._generating = self._derived(genai.Text2ImagePipeline, source, faults)
        some = self._generating or self._editing or self._inpainting
        if some is None:
            raise faults[0]
        config = some.get_generation_config()
        multiple = _multiple(load.model_dir, class_name)
        size = _usual_size(load.model_dir, multiple, class_name)
        if config.width > 0 and config.height > 0:
            size = config.width, config.height
        length = config.max_sequence_length
        editing = (self._editing or some).get_generation_config()
        self.info = ImageInfo(
            class_name,
            *(load.shape or size),
            multiple=multiple,
            num_steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale,
            strength=editing.strength,
            generates=self._generating is not None,
            edits=self._editing is not None,
            inpaints=self._inpainting is not None,
            max_sequence_length=length if length > 0 else None,
        )

    def _made(self, pipeline: Any, faults: list[Exception]) -> Any:
        """Returns a pipeline loaded from the model's files; None, with the error in `faults`, if
        the model does not support that pipeline."""
        load = self._load
        devices = load.device.split()
        try:
            if load.shape is None and len(devices) == 1:
                return pipeline(load.model_dir, load.device, **load.properties)
            made = pipeline(load.model_dir)
            if load.shape is not None:
                scale = made.get_generation_config().guidance_scale
                made.reshape(1, load.shape.height, load.shape.width, scale)
            made.compile(*devices, **load.properties)
            return made
        except RuntimeError as error:
            logger.debug("%s: %s", pipeline.__name__, error)
            faults.append(error)
            return None

    def _derived(self, pipeline: Any, source: Any, faults: list[Exception]) -> Any:
        """Returns a pipeline that shares the weights of `source`; None, with the error in `faults`,
        if that is not supported."""
        if source is None:
            return self._made(pipeline, faults)
        try:
            return pipeline(source)
        except RuntimeError as error:
            logger.debug("%s: %s", pipeline.__name__, error)
            return None

    def make(self, asked: MakeImage, connection: Connection[Any, Any]) -> ImageMade | InputRefused:
        """Sends a report after each step, and returns the finished image."""
        params, edited = asked.params, asked.edited
        pipeline, pictures = self._generating, []
        if edited is not None:
            pipeline = self._editing if edited.mask is None else self._inpainting
            parts = (edited.picture, edited.mask)
            pictures = [ov.Tensor(part[None].copy()) for part in parts if part is not None]
        steps: list[int] = []
        fault: list[BaseException] = []
        is_cancelled = False

        def on_step(step: int, num_steps: int, latent: ov.Tensor) -> bool:
            # Runs on a thread of the pipeline, where exceptions are not allowed.
            nonlocal is_cancelled
            steps.append(step)
            try:
                partial = None
                if step + 1 in partial_steps(num_steps, asked.num_partials):
                    partial = _file(pipeline.decode(latent).data[0], params)
                send(connection, StepDone(step + 1, num_steps, partial))
                is_cancelled = not receive(connection)
            except BaseException as error:
                fault.append(error)
            return is_cancelled or bool(fault)

        try:
            made = pipeline.generate(
                params.prompt, *pictures, **_arguments(params, edited), callback=on_step
            )
        except RuntimeError as error:
            if not steps and _ERROR_PREFIX in str(error):
                return InputRefused(f"the model refuses the request: {reason_of(error)}")
            raise
        if fault:
            raise fault[0]
        return ImageMade(b"" if is_cancelled else _file(made.data[0], params))


def _arguments(params: ImageParams, edited: Edited | None) -> dict[str, object]:
    given = {
        **params.further,
        "width": params.width,
        "height": params.height,
        "rng_seed": params.seed,
        "num_inference_steps": params.num_steps,
        "guidance_scale": params.guidance_scale,
        "max_sequence_length": params.max_sequence_length,
        "strength": None if edited is None else params.strength,
    }
    return {name: value for name, value in given.items() if value is not None}


def _file(pixels: Image, params: ImageParams) -> bytes:
    """Returns an image as a base64-encoded file."""
    data = io.BytesIO()
    options = {} if params.output_format == "png" else {"quality": params.quality}
    pillow.fromarray(np.asarray(pixels)).save(data, params.output_format, **options)
    return b64encode(data.getvalue())


def _config(model_dir: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((model_dir / name / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _multiple(model_dir: Path, class_name: str) -> int:
    """Returns the number that widths and heights must be a multiple of."""
    blocks = _config(model_dir, "vae_decoder").get("block_out_channels")
    scale = 2 ** (len(blocks) - 1) if isinstance(blocks, list) and blocks else 8
    return int(scale * (2 if class_name.startswith(_PATCHED) else 1))


def _usual_size(model_dir: Path, multiple: int, class_name: str) -> tuple[int, int]:
    """Returns the width and height in pixels that the model was trained for."""
    parts = [_config(model_dir, name) for name in ("unet", "transformer")]
    sizes = [part["sample_size"] for part in parts if isinstance(part.get("sample_size"), int)]
    scale = multiple // (2 if class_name.startswith(_PATCHED) else 1)
    side = sizes[0] * scale if sizes else 1024
    return side, side


def serve(connection: Connection[Any, Any]) -> None:
    """Answers a `LoadImages`, then `MakeImage`s, until the connection closes."""
    faults = (RuntimeError, ValueError, MemoryError)
    serve_model(
        connection, Pipelines, lambda pipelines, asked: pipelines.make(asked, connection), faults
    )
