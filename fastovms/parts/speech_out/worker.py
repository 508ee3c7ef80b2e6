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
"""A word that is in no dictionary. Without espeak-ng, the pipeline leaves out such words."""

_DICTIONARIES: Final = "MISAKI_DATA_DIR"
"""The environment variable with the folder of the English dictionaries."""

_FULL_SCALE: Final = 2**15 - 1


@dataclass(frozen=True, slots=True)
class LoadSpeaker:
    """The request to load a model. The process answers with a `SpeakerInfo` or `WorkerFailed`.

    Attributes:
        voices: the files of the voices, by voice name.
        languages: the languages of the voices (Kokoro); empty = the model reads characters
            (SpeechT5).
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
    """The properties of a loaded model.

    Attributes:
        rate: the sample rate in Hz.
        languages: the languages for which the model gets phonemes and supports a speed; empty = the
            model reads characters, at one speed.
    """

    rate: int
    languages: tuple[str, ...] = ()


class SpeakText(NamedTuple):
    """The request for the speech of a sentence. The process answers with a `Spoken`, `InputRefused`
    or `WorkerFailed`.

    Attributes:
        voice: one of `LoadSpeaker.voices`; another name = the pipeline's built-in voice.
        language: "" for models without languages.
    """

    text: str
    voice: str
    speed: float = 1.0
    language: str = ""


class Spoken(NamedTuple):
    """The synthesized speech of a sentence."""

    samples: Samples


class Speaker:
    """The pipeline of one model. Raises RuntimeError or OSError if the model cannot be loaded."""

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
        """Returns the wanted languages that the model can speak, or English if it can speak none of
        them. Raises RuntimeError if it cannot speak English either."""
        faults = {language: self._fault_of(language) for language in wanted}
        if all(faults.values()):
            faults[_ENGLISH] = self._fault_of(_ENGLISH)
        found = tuple(language for language in faults if not faults[language])
        if not found:
            raise RuntimeError(f"the model cannot speak English: {faults[_ENGLISH]}")
        for language in faults.keys() - found:
            logger.warning("the model does not speak %s: %s", language, faults[language])
        return found

    def _fault_of(self, language: str) -> str:
        """Returns the reason why the model cannot speak a language; "" = it can."""
        try:
            if len(self._speak(self._trial._replace(language=language)).samples):
                return ""
        except RuntimeError as error:
            return reason_of(error)
        return "espeak-ng is not installed, so words in no dictionary have no phonemes"

    def speak(self, asked: SpeakText) -> Spoken | InputRefused:
        """Returns the speech of a text, or InputRefused if the pipeline cannot speak that text.
        Raises the pipeline's exception if it cannot speak other texts either."""
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
    """Sets the folder of the dictionaries to that of the package misaki, for models without
    dictionaries, unless the operator has set it."""
    package = importlib.util.find_spec("misaki")
    if _DICTIONARIES not in os.environ and package is not None and package.origin is not None:
        os.environ[_DICTIONARIES] = str(Path(package.origin).parent / "data")


def _read_voice(path: Path, shape: tuple[int, ...]) -> ov.Tensor:
    """Returns the voice embedding in a file of f32 numbers, in the given shape. Raises RuntimeError
    if the file has another number of values."""
    values = np.fromfile(path, "<f4")
    if values.size != np.prod(shape):
        raise RuntimeError(f"{path} must have {np.prod(shape)} numbers, not {values.size}")
    return ov.Tensor(values.reshape(shape))


def serve(connection: Connection[Any, Any]) -> None:
    """Answers a `LoadSpeaker`, then `SpeakText`s, until the connection closes."""
    serve_model(connection, Speaker, Speaker.speak, faults=(Exception,))
