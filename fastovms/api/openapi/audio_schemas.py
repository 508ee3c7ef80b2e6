"""Schemas of the endpoints below `/audio`."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.answer import AnswerSchema
from fastovms.api.endpoint import Operation


class TranslationForm(AnswerSchema, kw_only=True):
    """The form of a translation: `file` is a part with a file name."""

    file: str
    model: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stream: bool | UnsetType = UNSET


class TranscriptionForm(TranslationForm, kw_only=True):
    """The form of a transcription: `file` is a part with a file name."""

    language: str | UnsetType = UNSET
    keywords: list[str] | UnsetType = UNSET
    timestamp_granularities: list[Literal["word", "segment"]] | UnsetType = UNSET


class AudioUsage(AnswerSchema, kw_only=True):
    """The length of the audio."""

    type: Literal["duration"]
    seconds: int


class TranscriptSegment(AnswerSchema, kw_only=True):
    """A part of a transcript. Probabilities are 0: the pipeline gives none."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptWord(AnswerSchema, kw_only=True):
    """A word of a transcript."""

    word: str
    start: float
    end: float


class TranscriptObject(AnswerSchema, kw_only=True):
    """A transcript; with `response_format` `verbose_json` it has the optional members."""

    text: str
    usage: AudioUsage
    task: Literal["transcribe", "translate"] | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET
    words: list[TranscriptWord] | UnsetType = UNSET


class TranscriptEvent(AnswerSchema, kw_only=True):
    """An event of a streamed transcript: further text, or the whole text at the end."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    usage: AudioUsage | UnsetType = UNSET


def _operation(summary: str, form: Any) -> Operation:
    return Operation(
        summary,
        TranscriptObject,
        body=form,
        body_type="multipart/form-data",
        required=("file",),
        events=TranscriptEvent,
    )


AUDIO_OPERATIONS: Final = {
    "POST /audio/transcriptions": _operation("Writes down speech.", TranscriptionForm),
    "POST /audio/translations": _operation(
        "Writes down speech, translated to English.", TranslationForm
    ),
}
