"""Makes tokens of the texts of a request, a few texts at a time, and cuts or refuses those that are
too long for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import check_text, check_token_range, context_exceeded
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.errors import InvalidField, RequestError
from fastovms.text.tokens.text_encoder import TokenIds

InputText = str | list[int]
"""A text, or the tokens of one."""

_PIECE_CHARS: Final = 16_000
_PIECE_TEXTS: Final = 64
"""How much is tokenized at once, which holds the GIL: some milliseconds."""

_USUAL_CHARS_PER_TOKEN: Final = 8
"""How many characters a token of ordinary text has at most. Of a longer text the beginning, or the
end, is tokenized first: it mostly tells whether the text is too long."""

_CUT: Final = 16
"""How many tokens, at most, a cut may have split one into."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How long a text may be, and what becomes of a longer one.

    Attributes:
        max_tokens: without those that the tokenizer puts around it.
        truncates: whether it is cut, rather than refused.
        keeps_end: whether its end is what is left.
    """

    max_tokens: int
    truncates: bool = False
    keeps_end: bool = False

    def at_most(self, max_tokens: int | None) -> TextLimit:
        """Returns the limit of texts that are cut to so many tokens in any case; None = as many as
        this one takes."""
        if max_tokens is None or max_tokens > self.max_tokens:
            return self
        return TextLimit(max_tokens, truncates=True, keeps_end=self.keeps_end)

    def cut(self, token_ids: TokenIds) -> TokenIds:
        if len(token_ids) <= self.max_tokens:
            return token_ids
        if self.keeps_end:
            return token_ids[len(token_ids) - self.max_tokens :]
        return token_ids[: self.max_tokens]

    def part(self, text: str) -> str:
        """Returns what is tokenized first of a text."""
        num_chars = (self.max_tokens + _CUT) * _USUAL_CHARS_PER_TOKEN
        return text[-num_chars:] if self.keeps_end else text[:num_chars]


async def tokenize(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    client: str,
) -> list[TokenIds]:
    """Returns the tokens of each text, without those around it.

    Args:
        names: the texts' fields, for messages.

    Raises:
        InvalidField: one is empty, too long, has ids outside the vocabulary, or is no text.
        Overloaded: too many texts of the client wait.
    """
    for text, name in zip(texts, names, strict=True):
        if isinstance(text, list):
            _check_ids(text, name, model, limit)
        elif limit.truncates:
            if not text:
                raise InvalidField(f"{name} must not be an empty string", param=name)
        else:
            check_text(text, name, model.info)
    found: list[TokenIds] = []
    for piece in _pieces(texts):
        encode = partial(
            _encode, model, [texts[i] for i in piece], [names[i] for i in piece], limit
        )
        chars = sum(len(texts[i]) for i in piece)
        if len(texts) == len(piece) and chars < offload.MUCH:
            found += encode()
        else:
            found += await model.tokenizing.run(client, encode)
    return found


def _pieces(texts: Sequence[InputText]) -> Iterator[range]:
    """Yields which texts are tokenized together."""
    start = chars = 0
    for position, text in enumerate(texts):
        if position > start and (
            position - start == _PIECE_TEXTS or chars + len(text) > _PIECE_CHARS
        ):
            yield range(start, position)
            start, chars = position, 0
        chars += len(text)
    yield range(start, len(texts))


def _encode(
    model: ServedEncoder, texts: Sequence[InputText], names: Sequence[str], limit: TextLimit
) -> list[TokenIds]:
    parts = [limit.part(text) for text in texts if isinstance(text, str)]
    try:
        encoded = iter(model.texts.encode(parts) if parts else [])
    except RequestError:
        raise _named_fault(model, texts, names) from None
    found: list[TokenIds] = []
    for text, name in zip(texts, names, strict=True):
        if isinstance(text, list):
            found.append(limit.cut(np.array(text, np.int64)))
            continue
        token_ids = next(encoded)
        if len(token_ids) <= limit.max_tokens + _CUT and limit.part(text) != text:
            [token_ids] = model.texts.encode([text])  # its tokens are longer than usual
        if len(token_ids) > limit.max_tokens and not limit.truncates:
            raise context_exceeded(_excess(len(token_ids), model, limit), model.info, name)
        found.append(limit.cut(token_ids))
    return found


def _excess(num_tokens: int, model: ServedEncoder, limit: TextLimit) -> str:
    around = model.info.max_model_len - limit.max_tokens
    return f"the text has {num_tokens} tokens or more, and {around} stand around it"


def _named_fault(
    model: ServedEncoder, texts: Sequence[InputText], names: Sequence[str]
) -> RequestError:
    """Returns the fault of the first text that has one, with its field."""
    for text, name in zip(texts, names, strict=True):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                return InvalidField(
                    f"{name} has a lone surrogate, which is no character", param=name
                )
    raise AssertionError("a text has no tokens, but no fault")


def _check_ids(token_ids: list[int], name: str, model: ServedEncoder, limit: TextLimit) -> None:
    if not token_ids:
        raise InvalidField(f"{name} must not be an empty list", param=name)
    check_token_range(token_ids, name, model.info)
    if len(token_ids) > limit.max_tokens and not limit.truncates:
        raise context_exceeded(_excess(len(token_ids), model, limit), model.info, name)
