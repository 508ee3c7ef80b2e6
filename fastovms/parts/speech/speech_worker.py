"""The process that runs a speech recognition model with OpenVINO GenAI, one window at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino_genai as genai
from numpy.typing import NDArray

from fastovms.backends.model_process import serve_model
from fastovms.backends.model_task import read_json, speech_type
from fastovms.backends.processes import send
from fastovms.parts.speech.transcript import (
    SAMPLE_RATE,
    WINDOW_SECONDS,
    Samples,
    Segment,
    SpeechInfo,
    SpeechParams,
    Word,
    language_code,
    language_names,
)

_SHORTEST: Final = SAMPLE_RATE // 10
"""Shorter audio is padded to this number of samples, because the pipeline rejects less than 201."""

_MAX_PROMPT_TOKENS: Final = 223
"""The maximum tokens of a prompt, of which the last ones are used: half of Whisper's context minus
one."""

_MAX_CONTEXT_TOKENS: Final = 512
"""The maximum tokens of prompt and keywords for Qwen3-ASR, whose decoder computes logits for
each."""

_MAX_NEW_TOKENS: Final = 512
"""The maximum tokens of a window's text, several times those of fast speech; more occur only in a
loop."""

_UNSPACED: Final = ("zh", "yue", "ja", "th")
"""The codes of languages that are written without spaces."""

_FULL_SCALE: Final = 2.0**15


@dataclass(frozen=True, slots=True)
class LoadSpeech:
    """The request to load a model. The process answers with a `SpeechInfo` or `WorkerFailed`."""

    model_dir: Path
    device: str
    properties: Mapping[str, object]
    log_level: int
    log_format: str


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """The request for the text of a window. The process answers with pieces of the text (`str`) if
    times are not requested, and finally with a `WindowText` or `WorkerFailed`.

    Attributes:
        samples: the samples of the window, and some after it.
        has_times: whether the text is divided into segments.
    """

    samples: Samples
    params: SpeechParams
    has_times: bool


class WindowText(NamedTuple):
    """The transcript of a window. Times are in seconds from the window's beginning. The end of a
    segment is negative if it continues after the window."""

    text: str
    language: str
    segments: list[Segment]
    words: list[Word]
    num_tokens: int


class _Model:
    """The pipeline of one model. Raises RuntimeError if the model cannot be loaded."""

    def __init__(self, load: LoadSpeech) -> None:
        self._load = load
        self._pipeline = self._make()
        self._tokenizer = self._pipeline.get_tokenizer()
        self.info = self._find_info()

    @abstractmethod
    def _make(self) -> Any:
        """Returns the pipeline."""

    @abstractmethod
    def _find_info(self) -> SpeechInfo: ...

    @abstractmethod
    def read(self, window: ReadWindow, connection: Connection[Any, Any]) -> WindowText:
        """Returns the transcript of a window, after sending its pieces if times are not
        requested."""

    def _tokens(self, text: str) -> tuple[int, ...]:
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return tuple(encoded.input_ids.data[0].tolist())

    def _hints(self, params: SpeechParams, room: int) -> tuple[str, str]:
        """Returns the keywords, and the end of the prompt, truncated to `room` tokens together.
        Keywords have at most half of them."""
        keywords = self._tokens(params.keywords)[: room // 2] if params.keywords else ()
        room -= len(keywords)
        prompt = self._tokens(params.prompt)[-room:] if params.prompt else ()
        return self._text(keywords), self._text(prompt)

    def _text(self, token_ids: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(token_ids))) if token_ids else ""


class Whisper(_Model):
    """The pipeline of a Whisper model."""

    _has_words = False

    def _find_info(self) -> SpeechInfo:
        config = self._pipeline.get_generation_config()
        codes = {token.strip("<|>") for token in config.lang_to_id}
        return SpeechInfo(
            languages=frozenset(codes if config.is_multilingual else ("en",)),
            translates=config.is_multilingual,
            finds_words=bool(config.alignment_heads),
        )

    def _make(self) -> Any:
        load = self._load
        return genai.WhisperPipeline(
            load.model_dir, load.device, word_timestamps=self._has_words, **load.properties
        )

    def read(self, window: ReadWindow, connection: Connection[Any, Any]) -> WindowText:
        params = window.params
        if params.has_words and not self._has_words:
            # The times of words need a decoder that keeps its attention, which is slower. The first
            # request for times replaces the faster decoder.
            del self._pipeline
            self._has_words = True
            self._pipeline = self._make()
        samples = _floats(window.samples)
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

    def _config(self, window: ReadWindow) -> Any:
        params, config = window.params, self._pipeline.get_generation_config()
        config.return_timestamps = window.has_times
        config.word_timestamps = params.has_words
        if self.info.translates:
            config.task = "translate" if params.translates else "transcribe"
            if params.language is not None:
                config.language = f"<|{params.language}|>"
        keywords, prompt = self._hints(params, _MAX_PROMPT_TOKENS)
        config.hotwords, config.initial_prompt = keywords or None, prompt or None
        return _sampling(config, params)


class Qwen3Asr(_Model):
    """The pipeline of a Qwen3-ASR model, which reports no times."""

    def _make(self) -> Any:
        load = self._load
        return genai.ASRPipeline(load.model_dir, load.device, **load.properties)

    def _find_info(self) -> SpeechInfo:
        named = read_json(self._load.model_dir / "config.json").get("support_languages")
        names = list(map(str, named)) if isinstance(named, list) else []
        codes = {language_code(name) or name: name for name in names}
        self._languages = codes or language_names()
        return SpeechInfo(
            languages=frozenset(self._languages),
            translates=False,
            finds_words=False,
            finds_times=False,
        )

    def read(self, window: ReadWindow, connection: Connection[Any, Any]) -> WindowText:
        params, config = window.params, self._pipeline.get_generation_config()
        config.max_new_tokens = _MAX_NEW_TOKENS
        config.language = self._languages.get(params.language or "")
        config.context = "\n".join(filter(None, self._hints(params, _MAX_CONTEXT_TOKENS))) or None
        num_sent = 0

        def on_text(text: str) -> genai.StreamingStatus:
            nonlocal num_sent
            if not window.has_times:
                send(connection, text)
                num_sent += len(text)
            return genai.StreamingStatus.RUNNING

        samples = _floats(window.samples)
        found = self._pipeline.generate(samples, _sampling(config, params), on_text)
        [text], [name] = found.texts, found.languages
        if not num_sent and not window.has_times:
            send(connection, text)  # the pipeline calls back only once it knows the language
        language = language_code(name) or ""
        num_tokens = found.perf_metrics.get_num_generated_tokens()
        joint = "" if language in _UNSPACED else " "
        return WindowText(f"{joint}{text.strip()}", language, [], [], num_tokens)


def _floats(samples: Samples) -> NDArray[np.float32]:
    return samples.astype(np.float32) / np.float32(_FULL_SCALE)


def _sampling(config: Any, params: SpeechParams) -> Any:
    """Returns the pipeline's configuration with the request's temperature and seed."""
    if params.temperature:
        config.do_sample = True
        config.temperature = params.temperature
        config.rng_seed = params.seed
    return config


def _load(load: LoadSpeech) -> _Model:
    return (Qwen3Asr if speech_type(load.model_dir) == "qwen3_asr" else Whisper)(load)


def serve(connection: Connection[Any, Any]) -> None:
    """Answers a `LoadSpeech`, then `ReadWindow`s, until the connection closes."""
    serve_model(connection, _load, lambda model, window: model.read(window, connection))
