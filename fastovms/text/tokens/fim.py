"""Fills in the middle: finds the tokens with which models were trained to write what stands between
a prompt and a suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from fastovms.text.tokens.tokenizer import Tokenizer


class _Format(NamedTuple):
    """The names of tokens, in the order in which they stand. Where `middle` is None the prompt
    stands last, behind the suffix, and the model continues it."""

    prefix: str
    suffix: str
    middle: str | None


_FORMATS: Final = (
    _Format("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    _Format("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite, SmolLM
    _Format("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Format("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    _Format(
        "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"
    ),  # DeepSeek Coder
    _Format("[PREFIX]", "[SUFFIX]", None),  # Codestral
)


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The token ids with which one model fills in the middle."""

    prefix: int
    suffix: int
    middle: int | None

    def join(self, prompt: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """Returns the token ids that the model continues with the middle."""
        if self.middle is None:
            return [self.suffix, *suffix, self.prefix, *prompt]
        return [self.prefix, *prompt, self.suffix, *suffix, self.middle]


def find_fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """Returns the first of the known formats that the vocabulary has, or None."""
    ids = iter(tokenizer.find_tokens([piece for names in _FORMATS for piece in names if piece]))
    for names in _FORMATS:
        prefix, suffix = next(ids), next(ids)
        middle = None if names.middle is None else next(ids)
        if prefix is None or suffix is None or (names.middle is not None and middle is None):
            continue
        return FimTokens(prefix, suffix, middle)
    return None


class FimFinder:
    """Finds the tokens of each model once."""

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Tokenizer, FimTokens | None] = WeakKeyDictionary()

    def __call__(self, tokenizer: Tokenizer) -> FimTokens | None:
        """Returns what `find_fim_tokens` does."""
        if tokenizer not in self._found:
            self._found[tokenizer] = find_fim_tokens(tokenizer)
        return self._found[tokenizer]
