"""Vocabularies for grammars: byte-level ones, which have given tags as special tokens or spell
them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache

from llguidance import LLMatcher, LLTokenizer

from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import Grammar
from tests.paths import BYTE_LEVEL_TOKENIZER

_EOS = 0


@cache
def vocabulary(*specials: str) -> Vocabulary:
    """The byte-level fixture's with `specials` added, and no tags of its own."""
    tokenizer = json.loads(BYTE_LEVEL_TOKENIZER.read_text())
    added = [token for token in tokenizer["added_tokens"] if token["special"]]
    first_id = 1 + max(tokenizer["model"]["vocab"].values())
    added += [{**added[0], "id": first_id + i, "content": text} for i, text in enumerate(specials)]
    return Vocabulary(json.dumps({**tokenizer, "added_tokens": added}), _EOS)


class Vocabulary:
    """A tokenizer and the grammars that are tried on it."""

    def __init__(self, tokenizer_json: str, eos: int) -> None:
        self.tokenizer = LLTokenizer(tokenizer_json, eos_token=eos)
        self.eos = eos
        self._compiler = GrammarCompiler(
            tokenizer_json, vocab_size=self.tokenizer.vocab_size, eos_token_ids=[eos]
        )

    def matcher(self, grammar: Grammar) -> LLMatcher:
        return self._compiler.compile(grammar).matcher.deep_copy()

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer.tokenize_bytes(text.encode())
        return token_ids

    def accepts(self, grammar: Grammar, text: str) -> bool | None:
        """True: `text` may end there; None: it may only go on; False: it is not allowed."""
        token_ids = self.encode(text)
        matcher = self.matcher(grammar)
        if matcher.validate_tokens(token_ids) < len(token_ids):
            return False
        matcher.consume_tokens(token_ids)
        return True if matcher.is_accepting() else None

    def walk(self, grammar: Grammar, hints: Sequence[str], seed: int, num_tokens: int = 60) -> str:
        """A text that random choices within the grammar make.

        Args:
            hints: texts to try instead of a random token, so that open ends find their close.
            num_tokens: after about so many, hints are tried and the end is taken nearly always.
        """
        rng = random.Random(seed)
        matcher = self.matcher(grammar)
        hint_ids = [self.encode(hint) for hint in hints]
        token_ids: list[int] = []
        while len(token_ids) < 200 * num_tokens:
            is_long = len(token_ids) >= num_tokens
            may_end = matcher.is_accepting() and rng.random() < (0.9 if is_long else 0.3)
            if matcher.is_stopped() or may_end:
                return str(self.tokenizer.decode_bytes(token_ids).decode(errors="replace"))
            taken = matcher.compute_ff_tokens()
            if not taken and rng.random() < (0.9 if is_long else 0.3):
                fitting = [ids for ids in hint_ids if matcher.validate_tokens(ids) == len(ids)]
                taken = rng.choice(fitting) if fitting else []
            if not taken:
                taken = [rng.choice(self._allowed(matcher))]
            matcher.consume_tokens(taken)
            assert not matcher.is_error(), matcher.get_error()
            token_ids += taken
        raise AssertionError(f"no end: {self.tokenizer.decode_str(token_ids)!r}")

    def _allowed(self, matcher: LLMatcher) -> list[int]:
        mask = matcher.compute_bitmask()
        return [
            token_id
            for token_id in range(self.tokenizer.vocab_size)
            if mask[token_id // 8] >> (token_id % 8) & 1 and token_id != self.eos
        ]
