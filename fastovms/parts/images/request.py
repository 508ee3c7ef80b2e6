"""The fields of requests for images, and their limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import orjson

from fastovms.api.body import decode, one_of, wrong
from fastovms.api.request_schemas import ModelField
from fastovms.config import ImageConfig
from fastovms.errors import InvalidField
from fastovms.params import Image
from fastovms.parts.images.picture import MAX_SEED, OUTPUT_FORMATS, ImageInfo, ImageParams

_MAX_PROMPT: Final = 32_000
"""The maximum characters of a prompt, as in OpenAI's API."""

_MAX_GUIDANCE: Final = 100.0
_UNLIMITED: Final = 2**31
"""An upper bound for fields that the server's own settings limit."""

_MAX_PARTIALS: Final = 3
_MAX_SEQUENCE: Final = 512
_SIZE: Final = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})", re.ASCII)

_FURTHER: Final = (
    *("prompt_2", "prompt_3", "negative_prompt", "negative_prompt_2", "negative_prompt_3"),
)
_IGNORED: Final = ("quality", "style", "moderation", "input_fidelity")
"""OpenAI's fields that have no effect here; the response has a warning that names them."""


class ImageFields(ModelField, frozen=True, kw_only=True):
    """The body of `POST /images/generations`. None = absent."""

    prompt: str | None = None
    prompt_2: str | None = None
    prompt_3: str | None = None
    negative_prompt: str | None = None
    negative_prompt_2: str | None = None
    negative_prompt_3: str | None = None
    n: int | None = None
    num_images_per_prompt: int | None = None
    size: str | None = None
    width: int | None = None
    height: int | None = None
    seed: int | None = None
    rng_seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    max_sequence_length: int | None = None
    response_format: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    background: str | None = None
    stream: bool | None = None
    partial_images: int | None = None
    quality: str | None = None
    style: str | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    user: str | None = None


class EditFields(ImageFields, frozen=True, kw_only=True):
    """The form fields of `POST /images/edits`; `image` and `mask` are parts with a file name."""

    image: str | None = None
    mask: str | None = None
    strength: float | None = None


_TEXTS: Final = frozenset(
    field.name for field in msgspec.structs.fields(EditFields) if field.type == (str | None)
)
_FLAGS: Final = {"true": True, "false": False}

Value = TypeVar("Value", int, float)


def read_form_fields(fields: Mapping[str, str]) -> EditFields:
    """Returns the typed fields of a form; empty fields count as absent. Raises InvalidField if a
    field has the wrong type."""
    typed = {name: _typed(name, text) for name, text in fields.items() if text}
    return decode(orjson.dumps(typed), EditFields)


def _typed(name: str, text: str) -> object:
    """Returns the value of a form field in the field's type; a text that cannot be converted is
    returned unchanged."""
    if name in _TEXTS:
        return text
    try:
        return _FLAGS.get(text.lower(), text) if not text[-1].isdigit() else orjson.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of an image request that can be checked without its model.

    Attributes:
        size: width and height in pixels; None = the model's or the picture's size.
        num_partials: the number of partial images that the stream shows of each image.
    """

    body: ImageFields
    prompt: str
    num_images: int
    size: tuple[int, int] | None
    seed: int | None
    output_format: str
    streams: bool
    num_partials: int

    @property
    def warnings(self) -> list[str]:
        """The names of the ignored fields that the request sets."""
        return [name for name in _IGNORED if getattr(self.body, name) not in (None, "", "auto")]


def read_fields(body: ImageFields) -> Asked:
    """Checks the fields of a body. Raises InvalidField if a field is invalid."""
    if not body.prompt:
        raise InvalidField("prompt is required: a description of the image", param="prompt")
    for name in ("prompt", *_FURTHER):
        text = getattr(body, name) or ""
        if len(text) > _MAX_PROMPT:
            raise InvalidField(
                f"{name} must have at most {_MAX_PROMPT} characters, not {len(text)}", param=name
            )
    one_of(body.response_format or "b64_json", ("b64_json",), "response_format")
    one_of(body.background or "auto", ("auto", "opaque"), "background")
    output_format = one_of(body.output_format or "png", OUTPUT_FORMATS, "output_format")
    if body.output_compression is not None:
        if output_format == "png":
            raise InvalidField(
                "output_compression needs the output_format jpeg or webp",
                param="output_compression",
            )
        _check(body, "output_compression", 0, 100)
    _check(body, "partial_images", 0, _MAX_PARTIALS)
    _check(body, "guidance_scale", 0.0, _MAX_GUIDANCE)
    _check(body, "strength", 0.0, 1.0)
    _check(body, "max_sequence_length", 1, _MAX_SEQUENCE)
    streams = body.stream is True
    if body.partial_images and not streams:
        raise InvalidField("partial_images requires stream to be true", param="partial_images")
    return Asked(
        body,
        body.prompt,
        _same(body, "n", "num_images_per_prompt", 1, _UNLIMITED) or 1,
        _size(body),
        _same(body, "seed", "rng_seed", 0, MAX_SEED - 1),
        output_format,
        streams,
        body.partial_images or 0,
    )


def _check(body: ImageFields, name: str, low: float, high: float) -> None:
    value = getattr(body, name, None)
    if value is not None and not low <= value <= high:
        limits = f"from {low:g} to {high:g}" if high != _UNLIMITED else f"at least {low:g}"
        raise wrong(name, limits, value)


def _same(body: ImageFields, name: str, other: str, low: int, high: int) -> int | None:
    """Returns the value of a field that has two names."""
    values = {key: getattr(body, key) for key in (name, other) if getattr(body, key) is not None}
    for key in values:
        _check(body, key, low, high)
    if len(set(values.values())) > 1:
        raise InvalidField(
            f"{name} and {other} are names of one setting and must not differ", param=other
        )
    return next(iter(values.values()), None)


def _size(body: ImageFields) -> tuple[int, int] | None:
    if body.width is not None or body.height is not None:
        if body.width is None or body.height is None or body.size not in (None, "auto"):
            raise InvalidField("give either size or both width and height", param="size")
        for name in ("width", "height"):
            _check(body, name, 1, 99_999)
        return body.width, body.height
    if body.size in (None, "", "auto"):
        return None
    match = _SIZE.fullmatch(str(body.size))
    if match is None:
        raise wrong("size", '"auto" or WIDTHxHEIGHT', body.size)
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one model.

    Attributes:
        last_step: the width and height of the last image, and the seconds per step; None = no image
            yet.
    """

    config: ImageConfig
    info: ImageInfo
    name: str
    last_step: tuple[int, int, float] | None = None

    def check_use(self, *, edits: bool, has_mask: bool) -> None:
        """Raises InvalidField if the model does not support generating, editing, or editing with a
        mask."""
        info = self.info
        if not edits and not info.generates:
            fault = "edits pictures with a mask only" if info.inpaints else "edits pictures only"
            raise InvalidField(f"the model {self.name} {fault}: use images/edits", param="model")
        if edits and has_mask and not info.inpaints:
            raise InvalidField(f"the model {self.name} does not support a mask", param="mask")
        if edits and not has_mask and not info.edits:
            needed = "needs a mask" if info.inpaints else "does not edit pictures"
            raise InvalidField(f"the model {self.name} {needed}", param="mask")

    def check(self, asked: Asked) -> None:
        """Raises InvalidField if a field exceeds a limit, or the model does not support the
        field."""
        body, config, info = asked.body, self.config, self.info
        most = config.max_num_images_per_prompt
        if asked.num_images > most:
            raise wrong("n", f"at most {most} (--max-num-images-per-prompt)", asked.num_images)
        steps = body.num_inference_steps
        most = config.max_num_inference_steps
        if steps is not None and not 1 <= steps <= most:
            limit = f"from 1 to {most} (--max-num-inference-steps)"
            raise wrong("num_inference_steps", limit, steps)
        for name in (*_FURTHER, "max_sequence_length"):
            if getattr(body, name) is not None and not info.reads(name):
                raise InvalidField(
                    f"{name} is not supported by the model {self.name} ({info.class_name})",
                    param=name,
                )
        scale = info.guidance_scale if body.guidance_scale is None else body.guidance_scale
        if scale <= 1:
            for name in _FURTHER:
                if name.startswith("negative") and getattr(body, name) is not None:
                    raise InvalidField(f"{name} needs a guidance_scale of more than 1", param=name)
        if config.resolution is not None and (scale > 1) != (info.guidance_scale > 1):
            words = "more than 1" if info.guidance_scale > 1 else "at most 1"
            raise wrong("guidance_scale", f"{words}, as the model was compiled", scale)
        strength = getattr(body, "strength", None)
        if strength is not None and int(self._steps(asked) * strength) < 1:
            raise InvalidField(
                f"strength {strength:g} leaves none of the {self._steps(asked)} steps: raise "
                "strength or num_inference_steps",
                param="strength",
            )
        if asked.size is not None:
            self._check_size(*asked.size)

    def _steps(self, asked: Asked) -> int:
        config = self.config
        default = config.default_num_inference_steps or self.info.num_steps
        return asked.body.num_inference_steps or min(default, config.max_num_inference_steps)

    def _check_size(self, width: int, height: int) -> None:
        config, multiple = self.config, self.info.multiple
        if config.resolution is not None and (width, height) != config.resolution:
            only = "x".join(map(str, config.resolution))
            raise wrong("size", f"{only}, the only one (--resolution)", f"{width}x{height}")
        most_width, most_height = config.max_resolution
        if config.resolution is None and (width > most_width or height > most_height):
            took = ""
            if self.last_step is not None:
                last_width, last_height, seconds = self.last_step
                took = f". A step of {last_width}x{last_height} took {seconds:.2g} s here"
            raise InvalidField(
                f"size must be at most {most_width}x{most_height} (--max-resolution), not "
                f'"{width}x{height}"{took}',
                param="size",
            )
        if width % multiple or height % multiple:
            words = f"a width and a height that are multiples of {multiple}"
            raise wrong("size", words, f"{width}x{height}")

    def params(self, asked: Asked, seed: int, picture: Image | None) -> ImageParams:
        """Returns the parameters of the first image.

        Args:
            seed: the seed for requests without one.
            picture: the picture to edit, whose size is the default size of the images.
        """
        body = asked.body
        size = asked.size or self.config.resolution or self.config.default_resolution
        if size is None and picture is not None:
            size = self._fitted(*picture.shape[:2])
        width, height = size or (self.info.width, self.info.height)
        further = {name: getattr(body, name) for name in _FURTHER}
        compression: Any = body.output_compression
        return ImageParams(
            prompt=asked.prompt,
            width=width,
            height=height,
            further={name: text for name, text in further.items() if text is not None},
            num_steps=self._steps(asked),
            guidance_scale=body.guidance_scale,
            strength=getattr(body, "strength", None),
            max_sequence_length=body.max_sequence_length,
            seed=seed if asked.seed is None else asked.seed,
            output_format=asked.output_format,
            **({} if compression is None else {"quality": compression}),
        )

    def _fitted(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size of a picture, reduced to the largest size that the model supports."""
        multiple = self.info.multiple
        most_width, most_height = self.config.max_resolution
        scale = min(1.0, most_width / width, most_height / height)
        sides = (int(side * scale) // multiple * multiple for side in (width, height))
        fitted_width, fitted_height = (max(multiple, side) for side in sides)
        return fitted_width, fitted_height
