"""A served embedding model or reranker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fastovms.api.body import FairThread
from fastovms.api.image_parts import ImageInput
from fastovms.api.served import AnyServed, Release, TextTokens, no_hold
from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.model_files import LENGTH_KEYS, UNLIMITED
from fastovms.backends.model_task import (
    VISION_FILES,
    check_required,
    first_integer,
    read_json,
    read_optional,
    takes_images,
    weights_file,
)
from fastovms.config import EncoderConfig
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo, Task
from fastovms.parts.embeddings.encoder_backend import ThreadedEncoder, load_encoder
from fastovms.parts.embeddings.pair_form import PairForm, find_pair_form
from fastovms.parts.embeddings.picture_backend import (
    PictureEncoder,
    PictureSizes,
    load_pictures,
)
from fastovms.server_config import ModelConfig
from fastovms.telemetry.metrics import GenerationMetrics
from fastovms.text.text_encoder import TextEncoder

_MAX_PIECES = 1024
"""The maximum number of pieces of one client's texts that wait to be tokenized; a request has one
waiting piece at a time."""


ENCODER_FILES: Final = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "config.json",
)
"""The files of an embedding model or reranker, which does not generate text and therefore often
lacks other files."""


_WITH_SHIFTED_POSITIONS: Final = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""The model types whose positions begin after the padding id."""

_LONGEST: Final = 10**6
"""A tokenizer's limit from this length on means that the tokenizer has no limit."""


def read_info(model_dir: Path, *, name: str) -> ModelInfo:
    """Returns the name and the capabilities of an encoder. Raises ConfigurationError if a file is
    missing or broken, or lacks required information."""
    has_images = takes_images(model_dir)
    check_required(model_dir, VISION_FILES if has_images else ENCODER_FILES)
    config_path = model_dir / "config.json"
    config = read_json(config_path)
    text_config = config.get("text_config")
    scopes = [config, text_config] if isinstance(text_config, dict) else [config]
    vocab_size = first_integer(scopes, ("vocab_size",))
    if vocab_size is None or vocab_size < 1:
        raise ConfigurationError(f"{config_path} has no vocab_size")
    return ModelInfo(
        name=name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=_longest_text(model_dir, config, scopes),
        vocab_size=vocab_size,
        eos_token_ids=frozenset(),
        config=config,
        takes_images=has_images,
    )


def _longest_text(model_dir: Path, config: Mapping[str, Any], scopes: list[dict[str, Any]]) -> int:
    positions = first_integer(scopes, LENGTH_KEYS)
    if positions is None or positions < 1:
        positions = UNLIMITED
    elif config.get("model_type") in _WITH_SHIFTED_POSITIONS:
        padding = config.get("pad_token_id")
        positions -= 1 + (padding if isinstance(padding, int) else 1)
    tokenizer = read_optional(model_dir / "tokenizer_config.json")
    limit = tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None
    if isinstance(limit, int) and 0 < limit < _LONGEST:
        positions = min(positions, limit)
    return max(1, positions)


class EncoderTokens:
    """Implements `TextTokens` with an encoder's tokenizer."""

    def __init__(self, texts: TextEncoder) -> None:
        self._texts = texts
        self.pad_token_id = texts.pad_token_id
        self.has_detokenizer = texts.has_detokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        [found] = self._texts.encode([text])
        whole = self._texts.enclosed(found) if add_special_tokens else found
        token_ids: list[int] = whole.tolist()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._texts.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id], skip_special_tokens=False).encode()


@dataclass(frozen=True, slots=True)
class ServedEncoder(AnyServed):
    """An embedding model or reranker in memory.

    Attributes:
        tokenizing: tokenizes texts and pairs, a few at a time.
        form: the prompt format of a decoder-based reranker; None = unknown.
        images: loads the images of requests; None = the model does not support images.
        sizes: the sizes to which the model resizes images.
    """

    backend: ThreadedEncoder | PictureEncoder
    texts: TextEncoder
    config: EncoderConfig
    metrics: GenerationMetrics
    tokenizing: FairThread[Any]
    aliases: tuple[str, ...] = ()
    hold: Callable[[], Release] = no_hold
    form: PairForm | None = None
    images: ImageInput | None = None
    sizes: PictureSizes | None = None

    @property
    def task(self) -> Task:
        return self.backend.encoder.task

    @property
    def tokens(self) -> TextTokens:
        return EncoderTokens(self.texts)

    @property
    def joins_pairs(self) -> bool:
        """Whether the model is a reranker that reads a pair as one text."""
        is_pairless = self.texts.pair is None or self.backend.encoder.joins_pairs
        return self.task is Task.RERANK and is_pairless


def load(
    model: ModelConfig, info: ModelInfo, turn: ComputeTurn, closes: list[Callable[[], None]]
) -> ServedEncoder:
    """Loads a model, and appends the functions that end its threads to `closes`. Raises
    ConfigurationError as `load_encoder` does, or if adapters are requested."""
    if model.engine.serves_adapters:
        raise ConfigurationError(
            f"{model.name} is an encoder, which serves no adapters: leave out --enable-lora and "
            "--lora-modules"
        )
    backend: ThreadedEncoder | PictureEncoder
    sizes = None
    if info.takes_images:
        texts = TextEncoder.load(model.path)
        # The pipeline adds the special tokens itself.
        texts.before, texts.behind = texts.before[:0], texts.behind[:0]
        backend = load_pictures(model.path, info, model.engine, model.encoder.pooling, turn)
        sizes = PictureSizes.of(read_json(model.path / "preprocessor_config.json"))
    else:
        backend, texts = load_encoder(model.path, info, model.engine, model.encoder, turn)
    tokenizing: FairThread[Any] = FairThread(
        "texts to encode", per_client=_MAX_PIECES, total=4 * _MAX_PIECES
    )
    closes.append(tokenizing.close)
    metrics = backend.metrics(model.engine.device)
    served = ServedEncoder(
        backend, texts, model.encoder, metrics, tokenizing, model.names[1:], sizes=sizes
    )
    if not served.joins_pairs:
        return served
    form = find_pair_form(model.path, info.config, model.chat.chat_template)
    instruct = model.encoder.query_instruction
    if form is not None and instruct:
        # An operator may have written the prompt into the instructions.
        form = None if form.is_written([instruct]) else replace(form, instruct=instruct)
    return replace(served, form=form)
