"""The types of image requests and results that the layers exchange."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fastovms.params import Image

OUTPUT_FORMATS: Final = ("png", "jpeg", "webp")

_VARIANT: Final = re.compile(r"(Img2Img|Inpaint)?Pipeline$")

_NEGATIVE: Final = ("negative_prompt",)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "StableDiffusion": _NEGATIVE,
    "LatentConsistencyModel": (),
    "StableDiffusionXL": (*_NEGATIVE, "prompt_2", "negative_prompt_2"),
    "StableDiffusion3": (
        *(*_NEGATIVE, "prompt_2", "prompt_3", "negative_prompt_2", "negative_prompt_3"),
        "max_sequence_length",
    ),
    "Flux": ("prompt_2", "max_sequence_length"),
    "FluxFill": ("prompt_2", "max_sequence_length"),
    "Flux2Klein": ("max_sequence_length",),
    "QwenImage": (*_NEGATIVE, "max_sequence_length"),
    "ZImage": (*_NEGATIVE, "max_sequence_length"),
}
"""The optional fields that pipelines support, by the prefix of their names. OpenVINO GenAI fails on
unsupported fields."""


@dataclass(frozen=True, slots=True)
class ImageParams:
    """The parameters of one image.

    Attributes:
        further: the prompts besides the main one, by field name.
        width, height: in pixels.
        guidance_scale: None = the model's default.
        strength: how much an edited picture changes, from 0 to 1; None = the model's default.
        max_sequence_length: the maximum tokens of the prompt for a T5 encoder; None = the model's
            default.
        output_format: one of `OUTPUT_FORMATS`.
        quality: the quality of a JPEG or WebP file, from 0 to 100.
    """

    prompt: str
    width: int
    height: int
    further: Mapping[str, str] = field(default_factory=dict)
    num_steps: int = 50
    guidance_scale: float | None = None
    strength: float | None = None
    max_sequence_length: int | None = None
    seed: int = 0
    output_format: str = "png"
    quality: int = 90

    def expected_steps(self, *, edits: bool) -> int:
        """Returns the number of steps of the image. An edit skips the first steps."""
        strength = self.strength if edits and self.strength is not None else 1.0
        return max(1, int(self.num_steps * strength))

    def with_seed(self, number: int) -> ImageParams:
        """Returns the parameters of image `number` of a request, counted from 0; only the seed
        differs."""
        return replace(self, seed=(self.seed + number) % MAX_SEED)


MAX_SEED: Final = 2**32
"""The upper bound (exclusive) of seeds of OpenVINO GenAI's generator."""


class StaticShape(NamedTuple):
    """The only image size that a model supports, in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The abilities and defaults of a model.

    Attributes:
        class_name: the pipeline named in model_index.json.
        width, height: the image size in pixels that the model was trained for.
        multiple: widths and heights must be multiples of this number.
        num_steps, guidance_scale, strength: the model's defaults.
        max_sequence_length: the default of this field; None = not supported.
        generates, edits, inpaints: whether the model supports images from a prompt alone, from a
            picture, and from a picture with a mask.
    """

    class_name: str
    width: int
    height: int
    multiple: int
    num_steps: int
    guidance_scale: float
    strength: float
    generates: bool
    edits: bool
    inpaints: bool
    max_sequence_length: int | None = None

    def reads(self, name: str) -> bool:
        """Returns whether the model supports this field of requests."""
        return name in _FIELDS.get(_VARIANT.sub("", self.class_name), ())


@dataclass(frozen=True, slots=True)
class Edited:
    """A picture to edit.

    Attributes:
        mask: white where the picture is repainted; None = everywhere.
    """

    picture: Image
    mask: Image | None = None


class Step(NamedTuple):
    """The progress of a request after a step.

    Attributes:
        num_done, num_all: the number of completed steps, and of all steps, of all images.
        image: the number of the image, from 0.
        partial: the partial image as a base64-encoded file; None = no image at this step.
    """

    num_done: int
    num_all: int
    image: int
    partial: bytes | None


class Made(NamedTuple):
    """A complete image.

    Attributes:
        file: the image as a base64-encoded file.
    """

    file: bytes
    seed: int


@dataclass(slots=True)
class MadeImages:
    """The images of a request.

    Attributes:
        queue_time: seconds until the first image was begun.
        compute_time: seconds from then to the end.
    """

    images: list[Made] = field(default_factory=list)
    queue_time: float = 0.0
    compute_time: float = 0.0


OnStep = Callable[[Step], None]
"""Called after each step. Must not block or raise."""

OnMade = Callable[[int, Made], None]
"""Called with the number of an image, from 0, and the complete image."""


def partial_steps(num_steps: int, num_partials: int) -> Sequence[int]:
    """Returns the numbers of the steps, from 1, after which a partial image is sent."""
    steps = (round(num_steps * i / (num_partials + 1)) for i in range(1, num_partials + 1))
    return sorted({step for step in steps if 0 < step < num_steps})
