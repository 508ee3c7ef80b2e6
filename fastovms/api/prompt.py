"""Turns prompts into token ids, in a thread if long."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fastovms.api import offload
from fastovms.api.body import show
from fastovms.config import ApiConfig
from fastovms.errors import CONTEXT_EXCEEDED, InvalidField
from fastovms.params import ModelInfo
from fastovms.text.tokenizer import Tokenizer

_CALL_COST: Final = 500
"""How many characters a call of the tokenizer counts as, however short its text."""

_MAX_CHARS_PER_TOKEN: Final = 256
"""How many characters a token has at most, on average: more than in any vocabulary. A text that is
longer than the context even so is refused without encoding it."""

_USUAL_CHARS_PER_TOKEN: Final = 8
"""How many characters a token of ordinary text has at most. A text that is still longer is cut:
beginning is encoded first, because encoding holds the GIL: a text that is far too long would stop
every stream for as long as it takes."""

_CUT: Final = 16
"""How many tokens, at most, a cut may have split one into."""

_FORMS: Final = (
    "prompt must be a string, a list of strings, a list of token ids or a list of such lists"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as it was sent.

    Attributes:
        text: None = the client sent token ids, or a part of them was cut off.
        warnings: parts of the messages that the template cannot show.
        opening: if an answer is continued: the text whose end shows whether the answer begins
            within reasoning; None = use `text`.
    """

    token_ids: Sequence[int]
    text: str | None = None
    warnings: Sequence[str] = ()
    opening: str | None = None

    @property
    def end(self) -> str:
        """The text whose end shows whether the answer begins within reasoning."""
        return self.opening if self.opening is not None else self.text or ""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The part of a long prompt that is kept: its last tokens, or its first."""

    max_tokens: int
    keeps_end: bool

    def cut(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[-self.max_tokens :] if self.keeps_end else token_ids[: self.max_tokens]


def split_prompts(
    prompt: str | list[str | int | list[int]] | None,
    model: ModelInfo,
    config: ApiConfig,
    *,
    truncation: Truncation | None = None,
) -> list[str | list[int]]:
    """Returns the prompts of a request, in order, each checked but not yet encoded. Raises
    InvalidField if the prompts are missing, empty, too many, of mixed forms, too long for the
    context without truncation, or have ids outside the vocabulary."""
    if prompt is None:
        raise InvalidField("prompt is required", param="prompt")
    if isinstance(prompt, str):
        check_text(prompt, "prompt", model)
        return [prompt]
    forms = set(map(type, prompt))
    if forms == {int}:
        token_ids: list[int] = prompt  # type: ignore[assignment]
        _check_token_ids(token_ids, "prompt", model, truncation)
        return [token_ids]
    if not forms:
        raise InvalidField("prompt must not be an empty list", param="prompt")
    if len(forms) > 1:
        raise InvalidField(f"{_FORMS}, not a mixture", param="prompt")
    if len(prompt) > config.max_prompts:
        raise InvalidField(
            f"prompt must have at most {config.max_prompts} entries, not {len(prompt)}",
            param="prompt",
        )
    prompts: list[str | list[int]] = prompt  # type: ignore[assignment]
    for position, entry in enumerate(prompts):
        name = f"prompt[{position}]"
        if isinstance(entry, str):
            check_text(entry, name, model)
        else:
            _check_token_ids(entry, name, model, truncation)
    return prompts


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Encodes texts to the token ids of prompts.

    Attributes:
        truncation: how to cut long texts, which are then encoded only in part; None = too long
            texts are refused.
    """

    tokenizer: Tokenizer
    model: ModelInfo
    add_special_tokens: bool
    truncation: Truncation | None = None

    def encode(self, text: str, name: str) -> list[int]:
        """Returns the token ids of a text, in time proportional to it. Raises InvalidField if the
        text is far too long (`context_length_exceeded`). `name` is the text's field."""
        truncation = self.truncation
        limit = self.model.max_model_len if truncation is None else truncation.max_tokens + _CUT
        num_chars = limit * _USUAL_CHARS_PER_TOKEN
        keeps_end = truncation is not None and truncation.keeps_end
        part = text[-num_chars:] if keeps_end else text[:num_chars]
        token_ids = self.tokenizer.encode(part, add_special_tokens=self.add_special_tokens)
        if len(part) == len(text):
            return token_ids
        if len(token_ids) <= limit + _CUT:
            return self.tokenizer.encode(text, add_special_tokens=self.add_special_tokens)
        if truncation is None:
            raise context_exceeded(f"the prompt has more than {limit} tokens", self.model, name)
        return token_ids

    def prompt(self, given: str | list[int], name: str) -> Prompt:
        """Returns the encoded prompt, truncated if needed. Raises as `encode` does."""
        text = given if isinstance(given, str) else None
        token_ids = given if isinstance(given, list) else self.encode(given, name)
        if self.truncation is not None and len(token_ids) > self.truncation.max_tokens:
            return Prompt(self.truncation.cut(token_ids))
        return Prompt(token_ids, text)


async def encode_prompts(
    prompts: Sequence[str | list[int]], encoder: PromptEncoder
) -> list[Prompt]:
    """Encodes the prompts that are text, in a thread if they are long.

    Raises InvalidField (`context_length_exceeded`) for a text that is far too long;
    `token_budget.fit_max_tokens` finds the others.
    """

    def encode() -> list[Prompt]:
        return [
            encoder.prompt(prompt, prompt_name(position, len(prompts)))
            for position, prompt in enumerate(prompts)
        ]

    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    return await offload.run(encode, encoding_cost(texts))


def encoding_cost(texts: Collection[str]) -> int:
    """Returns the cost of encoding the texts: the work for `offload`."""
    return sum(map(len, texts)) + _CALL_COST * (len(texts) - 1)


def prompt_name(position: int, num_prompts: int) -> str:
    """Returns the name of a prompt in error messages."""
    return "prompt" if num_prompts == 1 else f"prompt[{position}]"


def context_exceeded(reason: str, model: ModelInfo, name: str) -> InvalidField:
    """Returns the error that a field is longer than the context. `name` is the invalid field."""
    told = f"This model's maximum context length is {model.max_model_len} tokens, but {reason}."
    return InvalidField(
        f"{told} {model.context_reason}".rstrip(),
        param=name,
        code=CONTEXT_EXCEEDED,
    )


def check_text(text: str, name: str, model: ModelInfo) -> None:
    """Raises InvalidField for a text that is empty, or longer than the context with any
    tokenization."""
    check_num_chars(len(text), name, model)


def check_num_chars(num_chars: int, name: str, model: ModelInfo) -> None:
    """Raises InvalidField for the length of a text, in characters, as `check_text` does."""
    if not num_chars:
        raise InvalidField(f"{name} must not be an empty string", param=name)
    if num_chars > model.max_model_len * _MAX_CHARS_PER_TOKEN:
        raise context_exceeded(f"the prompt has {num_chars} characters", model, name)


def _check_token_ids(
    token_ids: list[int], name: str, model: ModelInfo, truncation: Truncation | None
) -> None:
    if not token_ids:
        raise InvalidField(f"{name} must not be an empty list", param=name)
    if truncation is None and len(token_ids) > model.max_model_len:
        raise context_exceeded(f"the prompt has {len(token_ids)} tokens", model, name)
    check_token_range(token_ids, name, model)


def check_token_range(token_ids: Sequence[int], name: str, model: ModelInfo) -> None:
    """Raises InvalidField for a token id outside the vocabulary."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < model.vocab_size):
        return
    position, wrong = next(
        (position, token_id)
        for position, token_id in enumerate(token_ids)
        if not 0 <= token_id < model.vocab_size
    )
    name = f"{name}[{position}]"
    raise InvalidField(
        f"{name} must be a token id from 0 to {model.vocab_size - 1}, not {show(wrong)}", param=name
    )
