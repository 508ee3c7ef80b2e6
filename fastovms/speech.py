"""The types that layers exchange about speech: samples in, texts with times out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE: Final = 16_000
"""Samples a second of all audio that models get, in one channel."""

WINDOW_SECONDS: Final = 30
"""Seconds of audio that Whisper reads at a time."""

Samples = NDArray[np.int16]
"""Samples of one channel, [N]."""


class Segment(NamedTuple):
    """A part of a transcript, with the seconds of the audio in which it is spoken.

    Attributes:
        window: the seconds at which the window of audio begins that it was found in.
        token_ids: the tokens of its text.
    """

    start: float
    end: float
    text: str
    window: float = 0.0
    token_ids: tuple[int, ...] = ()


class Word(NamedTuple):
    """A word of a transcript, with the seconds of the audio in which it is spoken."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class SpeechParams:
    """The parameters of one transcription.

    Attributes:
        language: code of the spoken language, such as "en"; None = the model detects it.
        translates: whether the text is a translation to English.
        prompt: text that the transcript continues; "" = none.
        keywords: words that the audio may contain; "" = none.
        temperature: 0 = the most likely text.
        seed: of the sampling.
        has_segments, has_words: whether their times are needed.
    """

    language: str | None = None
    translates: bool = False
    prompt: str = ""
    keywords: str = ""
    temperature: float = 0.0
    seed: int = 0
    has_segments: bool = False
    has_words: bool = False


@dataclass(slots=True)
class Transcript:
    """The text of some audio.

    Attributes:
        language: code of the spoken language; "" = unknown.
        segments, words: empty unless their times were asked for.
        num_tokens: the number of generated tokens.
        queue_time: seconds until the audio was first computed.
        compute_time: seconds from then to the end.
    """

    text: str = ""
    language: str = ""
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    num_tokens: int = 0
    queue_time: float = 0.0
    compute_time: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """The abilities and limits of a speech model.

    Attributes:
        languages: the codes of the languages that it transcribes.
        is_multilingual: whether it detects the language, and translates.
        finds_words: whether it finds the times of words.
    """

    languages: frozenset[str]
    is_multilingual: bool
    finds_words: bool


class Audio(Protocol):
    """Decoded audio."""

    @property
    def num_samples(self) -> int: ...

    def read(self, start: int, count: int) -> Samples:
        """Returns samples from a position; fewer at the end. Blocks while the disk is slow."""


OnText = Callable[[str], None]
"""Is called with each further piece of a transcript's text."""
