"""Reads the fields that favour, forbid or end at certain tokens: `logit_bias`, `bad_words`,
`allowed_token_ids`, `stop_token_ids`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import check_token_range, encoding_cost
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.config.api_config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import ModelInfo
from fastovms.text.tokens.tokenizer import Tokenizer

MAX_BIAS: Final = 100.0
"""The largest value of `logit_bias`, either way: OpenAI's range."""

MAX_NUM_BIASES: Final = 10_000
"""The most entries of `logit_bias`: each is checked while the event loop waits."""

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What `SamplingParams` says by token ids; `bad_words` are still text."""

    logit_bias: tuple[tuple[int, float], ...]
    allowed_token_ids: tuple[int, ...] | None
    stop_token_ids: frozenset[int]
    bad_words: tuple[str, ...]


def token_rules(body: GenerationFields, model: ModelInfo, config: ApiConfig) -> TokenRules:
    """Reads these fields.

    Raises:
        InvalidField: the vocabulary does not have an id, or words are empty, oversized or too many.
    """
    allowed = body.allowed_token_ids
    if allowed is not None:
        if not allowed:
            raise InvalidField(
                "allowed_token_ids must have at least one token id", param="allowed_token_ids"
            )
        check_token_range(allowed, "allowed_token_ids", model)
    stop_token_ids = body.stop_token_ids or []
    check_token_range(stop_token_ids, "stop_token_ids", model)
    bad_words = body.bad_words or []
    _check_words(bad_words, config)
    return TokenRules(
        logit_bias=tuple(_logit_bias(body.logit_bias or {}, model)),
        allowed_token_ids=None if allowed is None else tuple(dict.fromkeys(allowed)),
        stop_token_ids=frozenset(stop_token_ids),
        bad_words=tuple(dict.fromkeys(bad_words)),
    )


def bad_words_token_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Returns the token ids of each word as it is spelt at the beginning of a text and after a
    space; of one that begins with a space only so. (vLLM bans the second spelling only where it is
    as many tokens.)"""
    found: list[tuple[int, ...]] = []
    for word in words:
        first = tuple(tokenizer.encode(word, add_special_tokens=False))
        if not first:
            continue
        found.append(first)
        if not word[0].isspace():
            inner = tuple(tokenizer.encode(f" {word}", add_special_tokens=False))
            if inner[-len(first) :] != first:  # else banning `first` bans this too
                found.append(inner)
    return tuple(dict.fromkeys(found))


async def encode_bad_words(rules: TokenRules, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Does what `bad_words_token_ids` does, in a thread when the words are long."""
    words = rules.bad_words
    return await offload.run(partial(bad_words_token_ids, words, tokenizer), encoding_cost(words))


def _logit_bias(bias: dict[str, float], model: ModelInfo) -> Iterable[tuple[int, float]]:
    if len(bias) > MAX_NUM_BIASES:
        raise InvalidField(
            f"logit_bias must have at most {MAX_NUM_BIASES} entries, not {len(bias)}",
            param="logit_bias",
        )
    for key, value in bias.items():
        name = f"logit_bias.{key[:20]}"
        if not _TOKEN_ID.fullmatch(key) or int(key) >= model.vocab_size:
            raise InvalidField(
                f"logit_bias: a key must be a token id from 0 to {model.vocab_size - 1}, not "
                f"{show(key)}",
                param=name,
            )
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise InvalidField(
                f"{name} must be at least {-MAX_BIAS:g} and at most {MAX_BIAS:g}, not "
                f"{show(value)}",
                param=name,
            )
        yield int(key), value


def _check_words(words: Sequence[str], config: ApiConfig) -> None:
    if len(words) > config.max_stop_strings:
        raise InvalidField(
            f"bad_words must have at most {config.max_stop_strings} strings, not {len(words)}",
            param="bad_words",
        )
    for position, word in enumerate(words):
        name = f"bad_words[{position}]"
        if not word:
            raise InvalidField(f"{name} must not be an empty string", param=name)
        if len(word) > config.max_stop_length:
            raise InvalidField(
                f"{name} must be at most {config.max_stop_length} characters, not {len(word)}",
                param=name,
            )
