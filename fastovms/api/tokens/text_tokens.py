"""Makes tokens of single texts, and texts of tokens, with the tokenizer of any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from fastovms.api.serving.served import AnyServed
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo
from fastovms.text.tokens.text_encoder import TextEncoder

_MIN_LIMIT: Final = 2**20
_CHARS_PER_TOKEN: Final = 8


class TextTokens(Protocol):
    """The tokenizer of a model, for one text at a time.

    Attributes:
        pad_token_id: what texts of one batch are filled up with.
    """

    pad_token_id: int

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises RequestError for a text with a lone surrogate."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """Returns what one token contributes to a text, special tokens as they are written."""


class EncoderTokens:
    """Implements `TextTokens` with the tokenizer of a model that encodes texts."""

    def __init__(self, texts: TextEncoder) -> None:
        self._texts = texts
        self.pad_token_id = texts.pad_token_id

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        [found] = self._texts.encode([text])
        whole = self._texts.enclosed(found) if add_special_tokens else found
        token_ids: list[int] = whole.tolist()
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._texts.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id], skip_special_tokens=False).encode()


def tokens_of(model: AnyServed) -> TextTokens:
    return EncoderTokens(model.texts) if isinstance(model, ServedEncoder) else model.tokenizer


def check_detokenizer(model: AnyServed, param: str) -> None:
    """Raises InvalidField for a model whose tokens cannot be made into text: those that generate
    always can."""
    if isinstance(model, ServedEncoder) and not model.texts.has_detokenizer:
        raise InvalidField(
            f"{param} cannot be answered: the model {model.info.name} was exported without a "
            "detokenizer",
            param=param,
        )


def check_length(text: str, name: str, model: ModelInfo) -> None:
    """Raises for a text that no context of this model could hold many times over: encoding holds
    the GIL, and would stop every stream for as long as it takes."""
    limit = max(_MIN_LIMIT, model.max_model_len * _CHARS_PER_TOKEN)
    if len(text) > limit:
        raise InvalidField(
            f"{name} must be at most {limit} characters, not {len(text)}", param=name
        )
