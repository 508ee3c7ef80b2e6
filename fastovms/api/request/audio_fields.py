"""Checks the fields by which OVMS's clients ask for audio: no model here makes any, but wrong
values are refused as OVMS does."""

from __future__ import annotations

from typing import Final

from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.errors import InvalidField

_FORMATS: Final = ("wav", "pcm16")


def check_audio_fields(body: GenerationFields) -> None:
    """Raises InvalidField for a value that OVMS refuses."""
    _check_modalities(getattr(body, "modalities", None))
    _check_audio(body.audio)
    frames = body.chunk_frames
    if frames is not None and (type(frames) is not int or frames < 1):
        raise InvalidField(
            f"chunk_frames must be an integer of at least 1, not {show(frames)}",
            param="chunk_frames",
        )


def _check_modalities(given: object) -> None:
    if given is None:
        return
    if not isinstance(given, list):
        raise InvalidField(f"modalities must be an array, not {show(given)}", param="modalities")
    for position, modality in enumerate(given):
        if not isinstance(modality, str):
            name = f"modalities[{position}]"
            raise InvalidField(f"{name} must be a string, not {show(modality)}", param=name)


def _check_audio(given: object) -> None:
    if given is None:
        return
    if not isinstance(given, dict):
        raise InvalidField(f"audio must be an object, not {show(given)}", param="audio")
    form = given.get("format")
    if form is not None and form not in _FORMATS:
        raise InvalidField(
            f"audio.format must be one of {', '.join(_FORMATS)}, not {show(form)}",
            param="audio.format",
        )
