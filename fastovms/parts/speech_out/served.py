"""A served speech synthesis model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastovms.api.served import AnyServed, Release, no_hold
from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.model_task import (
    check_required,
    first_integer,
    read_json,
    speech_type,
    weights_file,
)
from fastovms.config import SpeakingConfig
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo, Task
from fastovms.parts.speech_out.backend import SpeakingBackend, load_speaker
from fastovms.parts.speech_out.encode import encodes
from fastovms.server_config import ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics

logger = logging.getLogger(__name__)

_KOKORO: Final = "kokoro"
_GRAPHS: Final[Mapping[str, tuple[str, ...]]] = {
    "speecht5": ("encoder_model", "decoder_model", "postnet", "vocoder"),
    _KOKORO: ("model",),
}
"""The graph files of speech synthesis models, by model type."""

MAX_INPUT: Final = 4096
"""The maximum characters of a text, as in OpenAI's API."""

BUILT_IN: Final = "default"
"""The name of the pipeline's built-in voice for SpeechT5."""

_BEST: Final = "af_heart"
"""Kokoro's voice with its authors' best grade: the default if it exists."""

_LANGUAGES: Final = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-br",
    "z": "zh",
}
"""The languages of Kokoro's voices, by the first letter of the voice's name."""


@dataclass(frozen=True, slots=True)
class ServedSpeaker(AnyServed):
    """A speech synthesis model in memory.

    Attributes:
        voices: the language of each voice, by its name; "" = the model has only one language. The
            first voice is the default.
    """

    backend: SpeakingBackend
    metrics: GenerationMetrics
    voices: Mapping[str, str]
    config: SpeakingConfig = field(default_factory=SpeakingConfig)
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def task(self) -> Task:
        return Task.SPEECH_OUT


def language_of(voice: str) -> str:
    """Returns the language of a Kokoro voice from its name, such as `bf_emma`; American English for
    names in another format."""
    has_prefix = len(voice) > 2 and voice[1] in "fm" and voice[2] == "_"
    return _LANGUAGES.get(voice[0], "en-us") if has_prefix else "en-us"


def read_info(model_dir: Path, *, name: str) -> ModelInfo:
    """Returns the name and the text limit of a speech synthesis model. Raises ConfigurationError if
    a file is missing or corrupt, or the model is of another type."""
    kind = speech_type(model_dir)
    if kind not in _GRAPHS:
        raise ConfigurationError(
            f"{model_dir} does not speak: its config.json is neither SpeechT5's nor Kokoro's"
        )
    graphs = [f"openvino_{graph}" for graph in _GRAPHS[kind]]
    files = [f"{graph}{ending}" for graph in graphs for ending in (".xml", ".bin")]
    tokenizer = () if kind == _KOKORO else ("openvino_tokenizer.xml",)
    check_required(model_dir, (*files, *tokenizer, "config.json"))
    config = read_json(model_dir / "config.json")
    return ModelInfo(
        name=name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=MAX_INPUT,
        vocab_size=first_integer([config], ("vocab_size", "n_token")) or 1,
        eos_token_ids=frozenset(),
        config=config,
    )


def find_voices(
    model_dir: Path, further: Mapping[str, Path], *, is_kokoro: bool
) -> dict[str, Path]:
    """Returns the files of a model's voices by voice name, default voice first: those in the
    model's folder `voices`, and `further` ones. Raises ConfigurationError if a Kokoro model has no
    voices."""
    folder = model_dir / "voices"
    paths = {path.stem: path for path in folder.glob("*.bin")} | dict(further)
    if is_kokoro and not paths:
        raise ConfigurationError(f"{folder} has no voices: files such as {_BEST}.bin")
    names = sorted(paths, key=lambda name: (name != _BEST, name))
    return {name: paths[name] for name in names}


def load(
    model: ModelConfig, info: ModelInfo, turn: ComputeTurn, closes: list[Callable[[], None]]
) -> ServedSpeaker:
    """Loads a model, and checks the encoders of its audio. Raises ConfigurationError as
    `find_voices` and `load_speaker` do."""
    if not encodes("mp3"):
        logger.warning(
            "audio can be encoded as wav or pcm only: install fastovms with the extra speech"
        )
    is_kokoro = speech_type(model.path) == _KOKORO
    files = find_voices(model.path, model.speaking.voices, is_kokoro=is_kokoro)
    names = files if is_kokoro else dict.fromkeys((BUILT_IN, *files))
    voices = {name: language_of(name) if is_kokoro else "" for name in names}
    languages = dict.fromkeys(filter(None, voices.values()))
    backend = load_speaker(model.path, info, model.engine, turn, files, languages)
    return ServedSpeaker(
        backend,
        backend.metrics(model.engine.device),
        voices,
        model.speaking,
        model.names[1:],
    )
