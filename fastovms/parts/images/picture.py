"""The types that the layers exchange about images: what is to be made, and what was made."""

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
"""The fields that the pipelines read besides those that all read, by the beginning of their names.
Others fail in OpenVINO GenAI."""


@dataclass(frozen=True, slots=True)
class ImageParams:
    """The parameters of one image.

    Attributes:
        further: the prompts besides the main one, by their fields.
        width, height: in pixels.
        guidance_scale: None = the model's own.
        strength: how much an edited picture is changed, from 0 to 1; None = the model's own.
        max_sequence_length: tokens of the prompt that a T5 encoder reads; None = the model's own.
        output_format: one of `OUTPUT_FORMATS`.
        quality: of a JPEG or WebP file, from 0 to 100.
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
        """Returns how many steps the image takes. An edit leaves out the first ones."""
        strength = self.strength if edits and self.strength is not None else 1.0
        return max(1, int(self.num_steps * strength))

    def with_seed(self, number: int) -> ImageParams:
        """Returns the parameters of the image with this number of a request."""
        return replace(self, seed=(self.seed + number) % MAX_SEED)


MAX_SEED: Final = 2**32
"""Seeds of OpenVINO GenAI's generator are below."""


class StaticShape(NamedTuple):
    """The only size of a model's images."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The abilities and defaults of a model.

    Attributes:
        class_name: the pipeline that its model_index.json names.
        width, height: the size for which it was trained.
        multiple: widths and heights are multiples of it.
        num_steps, guidance_scale, strength: its defaults.
        max_sequence_length: the default of the field of this name; None = the model does not read
            the field.
        generates, edits, inpaints: whether it makes images of a prompt alone, of a picture, and of
            a picture with a mask.
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
        """Returns whether the model reads this field of a request."""
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
    """A step of a request that is complete.

    Attributes:
        num_done, num_all: how many steps of all images are complete, and how many there are.
        image: the number of the image.
        partial: the image so far, as a file in base64; None = not asked for at this step.
    """

    num_done: int
    num_all: int
    image: int
    partial: bytes | None


class Made(NamedTuple):
    """An image that is complete.

    Attributes:
        file: its file in base64.
    """

    file: bytes
    seed: int


@dataclass(slots=True)
class MadeImages:
    """The images of a request.

    Attributes:
        queue_time: seconds until the first image was computed.
        compute_time: seconds from then to the end.
    """

    images: list[Made] = field(default_factory=list)
    queue_time: float = 0.0
    compute_time: float = 0.0


OnStep = Callable[[Step], None]
"""Is called after each step. Must not block or raise."""

OnMade = Callable[[int, Made], None]
"""Is called with the number of an image and the image."""


def partial_steps(num_steps: int, num_partials: int) -> Sequence[int]:
    """Returns the steps, from 1, after which an image is shown while it is incomplete."""
    steps = (round(num_steps * i / (num_partials + 1)) for i in range(1, num_partials + 1))
    return sorted({step for step in steps if 0 < step < num_steps})
