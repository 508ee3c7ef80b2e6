"""The process that runs `openvino_genai.WhisperPipeline`, one window of audio at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino_genai as genai

from fastovms.backends.model_process import serve_model
from fastovms.backends.processes import send
from fastovms.parts.speech.transcript import (
    SAMPLE_RATE,
    WINDOW_SECONDS,
    Samples,
    Segment,
    SpeechInfo,
    SpeechParams,
    Word,
)

_SHORTEST: Final = SAMPLE_RATE // 10
"""Samples to which shorter audio is padded: the pipeline refuses less than 201."""

_MAX_PROMPT_TOKENS: Final = 223
"""Tokens of a prompt of which the last are used: half of Whisper's context, less its mark."""

_FULL_SCALE: Final = 2.0**15


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
        samples: the samples of the window, and some after it.
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


class Whisper:
    """The pipeline of one model. Raises RuntimeError if the model cannot be loaded."""

    def __init__(self, load: LoadSpeech) -> None:
        self._load = load
        self._has_words = False
        self._pipeline = self._make()
        config = self._pipeline.get_generation_config()
        codes = {token.strip("<|>") for token in config.lang_to_id}
        self._tokenizer = self._pipeline.get_tokenizer()
        self.info = SpeechInfo(
            languages=frozenset(codes if config.is_multilingual else ("en",)),
            is_multilingual=config.is_multilingual,
            finds_words=bool(config.alignment_heads),
        )

    def _make(self) -> Any:
        load = self._load
        return genai.WhisperPipeline(
            load.model_dir, load.device, word_timestamps=self._has_words, **load.properties
        )

    def read(self, window: ReadWindow, connection: Connection[Any, Any]) -> WindowText:
        """Returns the text of a window, after sending it in pieces if it has no times."""
        params = window.params
        if params.has_words and not self._has_words:
            # The times of words need a decoder that keeps its attention, which is slower. The first
            # request for times replaces the faster decoder.
            del self._pipeline
            self._has_words = True
            self._pipeline = self._make()
        samples = window.samples.astype(np.float32) / _FULL_SCALE
        samples = np.pad(samples, (0, max(0, _SHORTEST - len(samples))))

        def on_text(text: str) -> genai.StreamingStatus:
            if not window.has_times:
                send(connection, text)
            elif len(samples) > WINDOW_SECONDS * SAMPLE_RATE:
                # The samples after the window only complete its last frames; ignore their text.
                return genai.StreamingStatus.STOP
            return genai.StreamingStatus.RUNNING

        found = self._pipeline.generate(samples, self._config(window), on_text)
        chunks = [chunk for chunk in found.chunks or () if chunk.start_ts < WINDOW_SECONDS]
        segments = [
            Segment(chunk.start_ts, chunk.end_ts, chunk.text, 0.0, self._tokens(chunk.text))
            for chunk in chunks
        ]
        words = [
            Word(word.start_ts, word.end_ts, word.word)
            for word in found.words or ()
            if word.start_ts < WINDOW_SECONDS
        ]
        text = "".join(chunk.text for chunk in chunks) if window.has_times else found.texts[0]
        num_tokens = found.perf_metrics.get_num_generated_tokens()
        return WindowText(text, found.language, segments, words, num_tokens)

    def _tokens(self, text: str) -> tuple[int, ...]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return tuple(encoded.input_ids.data[0].tolist())

    def _config(self, window: ReadWindow) -> Any:
        params, config = window.params, self._pipeline.get_generation_config()
        config.return_timestamps = window.has_times
        config.word_timestamps = params.has_words
        if self.info.is_multilingual:
            config.task = "translate" if params.translates else "transcribe"
            if params.language is not None:
                config.language = f"<|{params.language}|>"
        room = _MAX_PROMPT_TOKENS
        if params.keywords:
            tokens = self._tokens(params.keywords)[: room // 2]
            config.hotwords = self._tokenizer.decode(list(tokens))
            room -= len(tokens)
        if params.prompt:
            tokens = self._tokens(params.prompt)[-room:]
            config.initial_prompt = self._tokenizer.decode(list(tokens))
        if params.temperature:
            config.do_sample = True
            config.temperature = params.temperature
            config.rng_seed = params.seed
        return config


def serve(connection: Connection[Any, Any]) -> None:
    """Answers `LoadSpeech`, then `ReadWindow`s, until the connection ends."""
    serve_model(connection, Whisper, lambda whisper, window: whisper.read(window, connection))
