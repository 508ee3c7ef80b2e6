"""Tiny models that generate images, made once per process, and pictures for them."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.image_models import write_tiny
from tests.conftest import SCRATCH


@cache
def diffusion_dir(*, inpaints_only: bool = False) -> Path:
    """Returns a model with random weights whose pictures have 64 x 64 pixels by default."""
    directory = SCRATCH / f"diffusion-{inpaints_only}"
    name = "StableDiffusionInpaintPipeline" if inpaints_only else "StableDiffusionPipeline"
    write_tiny(directory, class_name=name, inpaints_only=inpaints_only)
    return directory


def pixels(width: int, height: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Returns random pixels, uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def file_of(picture: NDArray[np.uint8], form: str = "PNG") -> bytes:
    """Returns a picture as a file. Four channels include transparency."""
    data = io.BytesIO()
    Image.fromarray(picture).save(data, form)
    return data.getvalue()


def picture_of(file: bytes) -> Image.Image:
    """Returns the decoded picture of a file."""
    picture = Image.open(io.BytesIO(file))
    picture.load()
    return picture
