"""A served speech recognition model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fastovms.api.body import FairThread
from fastovms.api.served import AnyServed, Release, no_hold
from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.model_files import LENGTH_KEYS
from fastovms.backends.model_task import (
    check_required,
    first_integer,
    read_json,
    speech_type,
    weights_file,
)
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo, Task
from fastovms.parts.speech.audio import is_available
from fastovms.parts.speech.audio_decoder import AudioDecoder, DecodedAudio
from fastovms.parts.speech.speech_backend import SpeechBackend, load_speech
from fastovms.server_config import ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics

logger = logging.getLogger(__name__)

_MAX_AUDIOS: Final = 64
"""The maximum number of one client's files that wait to be decoded."""

_FILES: Final = (
    "openvino_encoder_model.xml",
    "openvino_encoder_model.bin",
    "openvino_decoder_model.xml",
    "openvino_decoder_model.bin",
    "openvino_tokenizer.xml",
    "openvino_detokenizer.xml",
    "config.json",
    "preprocessor_config.json",
)
"""The files of a speech recognition model."""


@dataclass(frozen=True, slots=True)
class ServedSpeech(AnyServed):
    """A speech recognition model in memory.

    Attributes:
        decoder: decodes audio files; None = the extra `speech` is not installed.
        decoding: runs the decoder; clients take turns.
    """

    backend: SpeechBackend
    metrics: GenerationMetrics
    decoder: AudioDecoder | None
    decoding: FairThread[DecodedAudio]
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold

    @property
    def task(self) -> Task:
        return Task.SPEECH


def read_info(model_dir: Path, *, name: str) -> ModelInfo:
    """Returns the name and the context length of a speech recognition model. Raises
    ConfigurationError if a file is missing or broken, or lacks required information."""
    is_whisper = speech_type(model_dir) == "whisper"
    check_required(model_dir, (*_FILES, *(["generation_config.json"] if is_whisper else [])))
    config_path = model_dir / "config.json"
    config = read_json(config_path)
    scope, key = config, "max_target_positions"
    if not is_whisper:
        scope, key = _member(_member(config, "thinker_config"), "text_config"), LENGTH_KEYS[0]
    longest, vocab_size = (first_integer([scope], (name,)) or 0 for name in (key, "vocab_size"))
    if longest < 1 or vocab_size < 1:
        raise ConfigurationError(f"{config_path} lacks {key} or vocab_size")
    return ModelInfo(
        name=name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=longest,
        vocab_size=vocab_size,
        eos_token_ids=frozenset(),
        config=config,
    )


def _member(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def load(
    model: ModelConfig, info: ModelInfo, turn: ComputeTurn, closes: list[Callable[[], None]]
) -> ServedSpeech:
    """Loads a model, and appends the function that ends its decoder to `closes`. Raises
    ConfigurationError as `load_speech` does."""
    backend = load_speech(model.path, info, model.engine, turn)
    metrics = backend.metrics(model.engine.device)
    decoding: FairThread[DecodedAudio] = FairThread(
        "audio files to decode", per_client=_MAX_AUDIOS, total=4 * _MAX_AUDIOS
    )
    closes.append(decoding.close)
    decoder = None
    if is_available():
        decoder = AudioDecoder()
        closes.append(decoder.close)
    else:
        logger.warning("audio will be refused: install fastovms with the extra speech")
    return ServedSpeech(backend, metrics, decoder, decoding, model.names[1:])
