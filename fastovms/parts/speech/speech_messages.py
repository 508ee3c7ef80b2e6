"""The messages between the speech backend and its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fastovms.parts.speech.transcript import Samples, Segment, SpeechParams, Word


@dataclass(frozen=True, slots=True)
class LoadSpeech:
    """Asks the process to load a model. The answer is a `SpeechInfo` or `WorkerFailed`."""

    model_dir: Path
    device: str
    properties: Mapping[str, object]
    log_level: int
    log_format: str


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """Asks for the text of a window. The answers are its text in pieces (`str`), if it has no
    times, and in the end a `WindowText` or `WorkerFailed`.

    Attributes:
        samples: those of the window, and a few that follow it.
        has_times: whether the text is divided into segments.
    """

    samples: Samples
    params: SpeechParams
    has_times: bool


class WindowText(NamedTuple):
    """The text of a window. Times are in seconds from the window's beginning; the end of a segment
    that has not ended in the window is negative."""

    text: str
    language: str
    segments: list[Segment]
    words: list[Word]
    num_tokens: int
