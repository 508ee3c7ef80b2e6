"""Tiny models that generate images, made once in a process, and pictures for them."""

from __future__ import annotations

import atexit
import io
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.image_models import write_tiny

_FOLDER = tempfile.TemporaryDirectory(prefix="fastovms-images-")
atexit.register(_FOLDER.cleanup)


@cache
def diffusion_dir(*, inpaints_only: bool = False) -> Path:
    """A model with random weights, whose pictures have 64 x 64 pixels if nothing else is asked."""
    directory = Path(_FOLDER.name, f"diffusion-{inpaints_only}")
    name = "StableDiffusionInpaintPipeline" if inpaints_only else "StableDiffusionPipeline"
    write_tiny(directory, class_name=name, inpaints_only=inpaints_only)
    return directory


def pixels(width: int, height: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Random pixels, uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def file_of(picture: NDArray[np.uint8], form: str = "PNG") -> bytes:
    """A picture as a file. Four channels have transparency."""
    data = io.BytesIO()
    Image.fromarray(picture).save(data, form)
    return data.getvalue()


def picture_of(file: bytes) -> Image.Image:
    """The picture of a file, decoded."""
    picture = Image.open(io.BytesIO(file))
    picture.load()
    return picture
