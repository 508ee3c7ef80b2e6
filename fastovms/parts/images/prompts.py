"""Computes how much of a prompt the text encoders of an image model read; the pipeline truncates
the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import openvino_genai

from fastovms.backends.model_task import first_integer, read_optional
from fastovms.errors import ConfigurationError
from fastovms.parts.images.picture import ImageParams
from fastovms.text.tokenizer import check_characters

_PLACES: Final = ("", "_2", "_3")
"""The suffixes of the names of a model's tokenizers, text encoders and prompts."""


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A text encoder with its tokenizer.

    Attributes:
        place: one of `_PLACES`.
        positions: the maximum number of tokens; None = unlimited.
    """

    place: str
    tokenizer: openvino_genai.Tokenizer
    positions: int | None

    def read(self, text: str, max_length: int | None) -> int | None:
        """Returns the number of tokens that are read if a text is truncated; None = the whole text
        is read. `max_length` is the request's limit; None = no limit."""
        limits = [limit for limit in (self.positions, max_length) if limit is not None]
        length = self.tokenizer.encode(text).input_ids.shape[1]
        return min(limits) if limits and length > min(limits) else None


@dataclass(frozen=True, slots=True)
class PromptReader:
    """The text encoders of a model. Thread-safe."""

    encoders: Sequence[_Encoder]

    @classmethod
    def load(cls, model_dir: Path) -> PromptReader:
        """Loads the tokenizers of a model. Raises ConfigurationError if a tokenizer cannot be
        loaded."""
        found = []
        for place in _PLACES:
            folder = model_dir / f"tokenizer{place}"
            if not (folder / "openvino_tokenizer.xml").is_file():
                continue
            config = read_optional(model_dir / f"text_encoder{place}" / "config.json")
            given = [config] if isinstance(config, dict) else []
            positions = first_integer(given, ("max_position_embeddings",))
            try:
                tokenizer = openvino_genai.Tokenizer(folder)
            except RuntimeError as error:
                raise ConfigurationError(
                    f"{folder} cannot be loaded: {str(error).strip().splitlines()[-1]}"
                ) from None
            found.append(_Encoder(place, tokenizer, positions))
        return cls(found)

    def cut(self, params: ImageParams, max_length: int | None) -> dict[str, int]:
        """Returns, for each prompt field that every encoder truncates, the number of tokens that
        are read. Raises RequestError if a prompt has a lone surrogate.

        Args:
            max_length: the request's maximum tokens of a prompt; None = no limit.
        """
        texts = {"prompt": params.prompt, **params.further}
        read: dict[str, int | None] = {}
        for kind in ("prompt", "negative_prompt"):
            for encoder in self.encoders:
                # Encoders without a prompt of their own get the main prompt.
                name = f"{kind}{encoder.place}"
                name = name if name in texts else kind
                if name in texts and read.get(name, 0) is not None:
                    check_characters(texts[name])
                    length = encoder.read(texts[name], max_length)
                    read[name] = None if length is None else max(length, read.get(name) or 0)
        return {name: length for name, length in read.items() if length is not None}
