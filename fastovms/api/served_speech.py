"""A served model of speech, and the interface by which requests hold models in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastovms.api.body import FairThread
from fastovms.backend import SpeechBackend
from fastovms.backends.audio_decoder import AudioDecoder, DecodedAudio
from fastovms.encoding import Task
from fastovms.params import ModelInfo
from fastovms.telemetry.metrics import GenerationMetrics

Release = Callable[[], None]
"""Releases a held model. Call it once."""


def no_hold() -> Release:
    """Returns a function that does nothing, as the release of a model that is never unloaded."""
    return lambda: None


@dataclass(frozen=True, slots=True)
class ServedSpeech:
    """A model in memory that transcribes speech.

    Attributes:
        decoder: decodes audio files; None = the extra `speech` is not installed.
        decoding: runs the decoder; clients take turns.
        aliases: names that requests may use in place of the model's.
        hold: holds the model in memory until released.
    """

    backend: SpeechBackend
    metrics: GenerationMetrics
    decoder: AudioDecoder | None
    decoding: FairThread[DecodedAudio]
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def info(self) -> ModelInfo:
        return self.backend.model

    @property
    def task(self) -> Task:
        return Task.SPEECH

    @property
    def capabilities(self) -> tuple[str, ...]:
        return ("transcription",)
