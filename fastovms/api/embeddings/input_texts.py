"""Makes tokens of the texts of a request, a few texts or a slice of one at a time, and cuts or
refuses those that are too long for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import (
    check_num_chars,
    check_token_range,
    context_exceeded,
)
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.errors import InvalidField, RequestError
from fastovms.text.tokens.text_encoder import TokenIds
from fastovms.text.tokens.text_slices import slices

InputText = str | tuple[str, ...] | list[int]
"""A text, the parts of one, which are joined where it is tokenized, or the tokens of one."""

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
        max_together: tokens of all texts of a request, beyond which they are refused; None = any
            number.
    """

    max_tokens: int
    truncates: bool = False
    keeps_end: bool = False
    max_together: int | None = None

    def at_most(self, max_tokens: int | None) -> TextLimit:
        """Returns the limit of texts that are cut to so many tokens in any case; None = as many as
        this one takes."""
        if max_tokens is None or max_tokens > self.max_tokens:
            return self
        return replace(self, max_tokens=max_tokens, truncates=True)

    def cut(self, token_ids: TokenIds) -> TokenIds:
        if len(token_ids) <= self.max_tokens:
            return token_ids
        if self.keeps_end:
            return token_ids[len(token_ids) - self.max_tokens :]
        return token_ids[: self.max_tokens]

    @property
    def part_chars(self) -> int:
        """How many characters of a text are tokenized first."""
        return (self.max_tokens + _CUT) * _USUAL_CHARS_PER_TOKEN

    def part(self, text: str) -> str:
        """Returns what is tokenized first of a text."""
        return text[-self.part_chars :] if self.keeps_end else text[: self.part_chars]


async def tokenize(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    client: str,
    *,
    encloses: bool = False,
) -> list[TokenIds]:
    """Returns the tokens of each text.

    Args:
        names: the texts' fields, for messages.
        encloses: whether texts come with the tokens that the tokenizer puts around them. Tokens
            that a client sends are taken as they are.

    Raises:
        InvalidField: one is empty, too long, has ids outside the vocabulary, or is no text, or all
            are too long together.
        Overloaded: too many texts of the client wait.
    """
    check_texts(model, texts, names, limit)
    found: list[TokenIds] = []
    num_tokens = 0
    for piece in _pieces(texts):
        given, called = [texts[i] for i in piece], [names[i] for i in piece]
        num_chars = sum(map(num_units, given))
        if num_chars > _PIECE_CHARS and not isinstance(given[0], list):
            made = [await _long(model, _whole(given[0]), called[0], limit, client, encloses)]
        else:
            encode = partial(_encode, model, given, called, limit, encloses)
            if len(texts) == len(piece) and num_chars < offload.MUCH:
                made = encode()
            else:
                made = await model.tokenizing.run(client, encode)
        num_tokens += sum(map(len, made))
        if limit.max_together is not None and num_tokens > limit.max_together:
            raise together_exceeded(limit.max_together, called[-1])
        found += made
    return found


def check_texts(
    model: ServedEncoder, texts: Sequence[InputText], names: Sequence[str], limit: TextLimit
) -> None:
    """Raises InvalidField for a text that is empty, or too long whatever its tokens are."""
    for text, name in zip(texts, names, strict=True):
        if isinstance(text, list):
            _check_ids(text, name, model, limit)
        elif limit.truncates:
            if not num_units(text):
                raise InvalidField(f"{name} must not be an empty string", param=name)
        else:
            check_num_chars(num_units(text), name, model.info)


def together_exceeded(max_tokens: int, name: str) -> InvalidField:
    """Returns the error about texts that have too many tokens together.

    Args:
        name: the field of the one that was too much.
    """
    return InvalidField(
        f"{name} is too much: all texts together must have at most {max_tokens} tokens",
        param=name,
    )


def num_units(text: InputText) -> int:
    """Returns how many characters a text has, or how many tokens."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def _whole(text: str | tuple[str, ...]) -> str:
    return "".join(text) if isinstance(text, tuple) else text


def _pieces(texts: Sequence[InputText]) -> Iterator[range]:
    """Yields which texts are tokenized together."""
    start = chars = 0
    for position, text in enumerate(texts):
        length = num_units(text)
        if position > start and (position - start == _PIECE_TEXTS or chars + length > _PIECE_CHARS):
            yield range(start, position)
            start, chars = position, 0
        chars += length
    yield range(start, len(texts))


async def _long(
    model: ServedEncoder, text: str, name: str, limit: TextLimit, client: str, encloses: bool
) -> TokenIds:
    """Returns the tokens of a text of which one slice after the other is tokenized, until it is
    found to be too long."""
    found: list[TokenIds] = []
    num_tokens = 0
    for part in slices(
        text,
        limit.part_chars,
        _PIECE_CHARS,
        from_end=limit.keeps_end,
        keeps_spaces=model.texts.keeps_spaces,
    ):
        token_ids = await model.tokenizing.run(client, partial(_encode_slice, model, part, name))
        found.append(token_ids)
        num_tokens += len(token_ids)
        if num_tokens > limit.max_tokens + _CUT:
            break
    if num_tokens > limit.max_tokens and not limit.truncates:
        raise context_exceeded(_excess(num_tokens, model, limit), model.info, name)

    def join() -> TokenIds:
        joined = limit.cut(np.concatenate(found[::-1] if limit.keeps_end else found))
        return model.texts.enclosed(joined) if encloses else joined

    joined: TokenIds = await model.tokenizing.run(client, join)
    return joined


def _encode_slice(model: ServedEncoder, text: str, name: str) -> TokenIds:
    try:
        [token_ids] = model.texts.encode([text])
    except RequestError:
        raise _named_fault([text], [name]) from None
    return token_ids


def _encode(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    encloses: bool,
) -> list[TokenIds]:
    wholes = [text if isinstance(text, list) else _whole(text) for text in texts]
    parts = [limit.part(text) for text in wholes if isinstance(text, str)]
    try:
        encoded = iter(model.texts.encode(parts) if parts else [])
    except RequestError:
        raise _named_fault(wholes, names) from None
    found: list[TokenIds] = []
    for text, name in zip(wholes, names, strict=True):
        if isinstance(text, list):
            found.append(limit.cut(np.array(text, np.int64)))
            continue
        token_ids = next(encoded)
        if len(token_ids) <= limit.max_tokens + _CUT and limit.part_chars < len(text):
            token_ids = _encode_slice(model, text, name)  # its tokens are longer than usual
        if len(token_ids) > limit.max_tokens and not limit.truncates:
            raise context_exceeded(_excess(len(token_ids), model, limit), model.info, name)
        token_ids = limit.cut(token_ids)
        found.append(model.texts.enclosed(token_ids) if encloses else token_ids)
    return found


def _excess(num_tokens: int, model: ServedEncoder, limit: TextLimit) -> str:
    around = model.info.max_model_len - limit.max_tokens
    return f"the text has {num_tokens} tokens or more, and {around} stand around it"


def _named_fault(texts: Sequence[str | list[int]], names: Sequence[str]) -> RequestError:
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
