"""The process that runs `openvino_genai.Text2SpeechPipeline`, one sentence at a time."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai

from fastovms.backends.model_process import serve_model
from fastovms.backends.processes import InputRefused
from fastovms.engine.model.devices import reason_of
from fastovms.parts.speech_out.encode import Samples
from fastovms.parts.speech_out.sentences import readable

logger = logging.getLogger(__name__)

_ENGLISH: Final = "en-us"

_TRIAL: Final = "Fastovms"
"""A word in no dictionary. Without espeak-ng the pipeline leaves such words out."""

_DICTIONARIES: Final = "MISAKI_DATA_DIR"
"""The environment variable with the folder of the dictionaries of English."""

_FULL_SCALE: Final = 2**15 - 1


@dataclass(frozen=True, slots=True)
class LoadSpeaker:
    """Asks the process to load a model. The answer is a `SpeakerInfo` or `WorkerFailed`.

    Attributes:
        voices: the files of its voices, by their names.
        languages: the languages of its voices (Kokoro); empty = it reads characters (SpeechT5).
    """

    model_dir: Path
    device: str
    properties: Mapping[str, object]
    voices: Mapping[str, Path]
    languages: tuple[str, ...]
    log_level: int
    log_format: str


@dataclass(frozen=True, slots=True)
class SpeakerInfo:
    """The facts of a loaded model.

    Attributes:
        rate: samples a second.
        languages: the languages that it can be given phonemes of, at another speed, too; empty = it
            reads characters, at one speed.
    """

    rate: int
    languages: tuple[str, ...] = ()


class SpeakText(NamedTuple):
    """Asks for the speech of a sentence. The answer is a `Spoken`, `InputRefused` or
    `WorkerFailed`.

    Attributes:
        voice: one of `LoadSpeaker.voices`; another = the voice that the pipeline has.
        language: "" for models without languages.
    """

    text: str
    voice: str
    speed: float = 1.0
    language: str = ""


class Spoken(NamedTuple):
    """The speech of a sentence."""

    samples: Samples


class Speaker:
    """The pipeline of one model. Raises RuntimeError or OSError if it cannot be loaded."""

    def __init__(self, load: LoadSpeaker) -> None:
        if load.languages:
            _find_dictionaries()
        self._pipeline = genai.Text2SpeechPipeline(load.model_dir, load.device, **load.properties)
        shape = tuple(self._pipeline.get_speaker_embedding_shape())
        self._voices = {name: _read_voice(path, shape) for name, path in load.voices.items()}
        self._rate = 0
        self._trial = SpeakText(_TRIAL, next(iter(self._voices), ""))
        languages: tuple[str, ...] = ()
        if load.languages:
            languages = self._try_languages(load.languages)
            self._trial = self._trial._replace(language=languages[0])
        else:
            self._speak(self._trial)
        self.info = SpeakerInfo(self._rate, languages)

    def _try_languages(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the languages that the model speaks of those wanted, or English if it speaks none
        of them. Raises RuntimeError if it does not speak English either."""
        faults = {language: self._fault_of(language) for language in wanted}
        if all(faults.values()):
            faults[_ENGLISH] = self._fault_of(_ENGLISH)
        found = tuple(language for language in faults if not faults[language])
        if not found:
            raise RuntimeError(f"the model can speak no language: {faults[_ENGLISH]}")
        for language in faults.keys() - found:
            logger.warning("the model does not speak %s: %s", language, faults[language])
        return found

    def _fault_of(self, language: str) -> str:
        """Returns why the model cannot speak a language; "" = it can."""
        try:
            if len(self._speak(self._trial._replace(language=language)).samples):
                return ""
        except RuntimeError as error:
            return reason_of(error)
        return "espeak-ng is not installed, so words in no dictionary have no phonemes"

    def speak(self, asked: SpeakText) -> Spoken | InputRefused:
        """Returns the speech of a text, or why the pipeline cannot speak it. Raises what the
        pipeline raises if it cannot speak another text either."""
        try:
            return self._speak(asked)
        except Exception as error:
            self._speak(self._trial)
            reason = f"input has a part that the model cannot speak: {reason_of(error)}"
            return InputRefused(reason, "input")

    def _speak(self, asked: SpeakText) -> Spoken:
        properties: dict[str, object] = {}
        text = readable(asked.text, asked.language)
        if asked.language:
            properties = {"language": asked.language, "speed": asked.speed}
        found = self._pipeline.generate(text, self._voices.get(asked.voice), **properties)
        self._rate = found.output_sample_rate
        samples = np.nan_to_num(np.asarray(found.speeches[0].data, np.float32).reshape(-1))
        return Spoken(np.rint(np.clip(samples, -1.0, 1.0) * _FULL_SCALE).astype(np.int16))


def _find_dictionaries() -> None:
    """Sets the folder of the dictionaries to that of the package misaki, which the pipeline reads
    if the model has none. An operator's choice stays."""
    package = importlib.util.find_spec("misaki")
    if _DICTIONARIES not in os.environ and package is not None and package.origin is not None:
        os.environ[_DICTIONARIES] = str(Path(package.origin).parent / "data")


def _read_voice(path: Path, shape: tuple[int, ...]) -> ov.Tensor:
    """Returns the embedding in a file of float32 numbers. Raises RuntimeError if their
    number is not that of the model."""
    values = np.fromfile(path, "<f4")
    if values.size != np.prod(shape):
        raise RuntimeError(f"{path} must have {np.prod(shape)} numbers, not {values.size}")
    return ov.Tensor(values.reshape(shape))


def serve(connection: Connection[Any, Any]) -> None:
    """Answers `LoadSpeaker`, then `SpeakText`s, until the connection ends."""
    serve_model(connection, Speaker, Speaker.speak, faults=(Exception,))
