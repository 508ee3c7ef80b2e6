"""Compiles grammars that a sample must follow, once each.

llguidance may overflow the stack or never return on what a client has written: whatever compiles
for a client has it tried first (`backends.trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from fastovms.grammar.grammar_cache import MAX_CACHED_BYTES, CompiledGrammar, GrammarCache
from fastovms.grammar.grammar_faults import UnfinishableGrammar, UnusableGrammar, first_line
from fastovms.grammar.grammar_state import MAX_FORCED_TOKENS, TOO_MANY_FORCED, GrammarState
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget
from fastovms.grammar.json_schema import usable_rules
from fastovms.grammar.lark.gbnf import lark_rules
from fastovms.grammar.lark.structural_tag import structural_tag
from fastovms.grammar.lark.unmatchable_rules import unmatchable_rule
from fastovms.grammar.llguidance_sources import WRITERS, framed
from fastovms.grammar.special_tokens import with_token_ids, without_names
from fastovms.grammar.tree_rules import tree_rules
from fastovms.grammar_tree import Node
from fastovms.params import Grammar, GrammarKind

_MIN_BYTES: Final = 64 * 2**10
_BYTES_PER_CHARACTER: Final = 64
"""What a compiled grammar is taken to hold, for each character of its source, where nobody has
measured it."""

_TRIAL_STEPS: Final = 8

_DEAD_END: Final = "NoExtensionBias"
"""llguidance's error where no token may follow."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=400_000,  # enough to choose from 10,000 strings
    step_lexer_fuel=100_000,
    step_max_items=5_000,
    verbose_errors=False,
)
"""Limits of what a grammar may cost when it is compiled, and then at each token: at most some 20
ms, where it is as ambiguous as that. One that needs more fails."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. It is thread-safe: a compilation, which may take long
    and releases the GIL, belongs in a thread; `start` then finds it in the cache."""

    def __init__(
        self,
        tokenizer_json: str,
        *,
        vocab_size: int | None,
        eos_token_ids: Sequence[int],
        max_cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        """
        Args:
            tokenizer_json: the text of a Hugging Face tokenizer.json.
            vocab_size: the model's; None = as many tokens as the tokenizer names.
            max_cached_bytes: how much the compiled grammars that are kept may hold.

        Raises:
            ValueError: `tokenizer_json` is no such text.
        """
        eos = list(eos_token_ids) or None
        self.eos_token_ids = frozenset(eos_token_ids)
        nameless, self.special_tokens = without_names(tokenizer_json)
        if eos is not None:  # without it, llguidance finds one by its name
            tokenizer_json = nameless
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
        self._to_llguidance: Mapping[GrammarKind, Callable[[str], str]] = {
            **WRITERS,
            GrammarKind.GRAMMAR: self._grammar,
            GrammarKind.STRUCTURAL_TAG: self._structural_tag,
        }
        # The special tokens that may stand in a text: an end token ends it.
        self._inner_tokens = {
            text: token_id
            for text, token_id in self.special_tokens.items()
            if token_id not in self.eos_token_ids
        }
        self._cache = GrammarCache(max_cached_bytes)

    @property
    def vocab_size(self) -> int:
        size: int = self._tokenizer.vocab_size
        return size

    def cached(self, grammar: Grammar) -> CompiledGrammar | None:
        """Returns the compiled grammar, if it is kept."""
        return self._cache.get(grammar)

    def compile(self, grammar: Grammar, *, num_bytes: int | None = None) -> CompiledGrammar:
        """Compiles the grammar, unless it is kept.

        Args:
            num_bytes: how much it holds when it is compiled, if somebody has measured it.

        Raises:
            UnfinishableGrammar: the grammar was compiled, but following it leads nowhere.
            UnusableGrammar: the grammar is malformed, or nothing can satisfy it.
        """
        found = self._cache.get(grammar)
        if found is not None:
            return found
        try:
            answer = self._to_llguidance[grammar.kind](grammar.source)
            rules = "" if grammar.tree is None else self._rules(grammar.tree)
        except UnfinishableGrammar as error:
            raise UnfinishableGrammar(grammar, error.message) from error
        except Exception as error:  # llguidance raises plain ones for faulty sources
            raise UnusableGrammar(grammar, first_line(str(error))) from error
        if answer and rules:
            self._matcher(grammar, answer)
            answer = framed(rules, answer)
        source = answer or rules
        matcher = self._matcher(grammar, source)
        num_characters = len(source)
        if num_bytes is None:
            num_bytes = _BYTES_PER_CHARACTER * num_characters
        compiled = CompiledGrammar(matcher, max(_MIN_BYTES, num_bytes) + 4 * num_characters)
        self._cache.put(grammar, compiled)
        return compiled

    def start(
        self, grammar: Grammar, num_prompt_tokens: int, time_budget: GrammarTimeBudget | None = None
    ) -> GrammarState:
        """Returns a new sample's state, at the beginning of the grammar, which is compiled only if
        it does not bring its compiled form. `time_budget` is that of all samples of the request, if
        there are others."""
        compiled = grammar.compiled
        if not isinstance(compiled, CompiledGrammar):
            compiled = self.compile(grammar)
        return GrammarState(
            compiled,
            compiled.matcher.deep_copy(),
            self.vocab_size,
            num_prompt_tokens,
            time_budget or GrammarTimeBudget(),
        )

    def _matcher(self, grammar: Grammar, source: str) -> LLMatcher:
        """Returns a matcher.

        Raises:
            UnusableGrammar: the grammar is malformed, or no text can even begin to satisfy it. In a
                tree such an answer would have llguidance follow forced text for ever.
        """
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise UnusableGrammar(grammar, first_line(matcher.get_error()))
        self._try(grammar, matcher.deep_copy())
        return matcher

    def _try(self, grammar: Grammar, matcher: LLMatcher) -> None:
        """Goes some steps, so that what is too much is known before any sample is begun."""
        has_chosen = False
        for _ in range(_TRIAL_STEPS):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            forced: list[int] = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
            if len(forced) > MAX_FORCED_TOKENS:
                raise UnfinishableGrammar(grammar, TOO_MANY_FORCED)
            if not forced and not matcher.is_stopped():
                forced = list(islice(self._possible(mask), 1))
                has_chosen = True
            matcher.consume_tokens(forced)
            if matcher.is_error():
                error = first_line(matcher.get_error())
                if error != _DEAD_END:
                    raise UnfinishableGrammar(grammar, error)
                if not has_chosen:
                    raise UnfinishableGrammar(grammar, "nothing satisfies it")
            if matcher.is_stopped():
                return

    def _possible(self, mask: NDArray[np.uint8]) -> Iterator[int]:
        """Returns tokens that go on, lowest first."""
        for position in np.flatnonzero(mask):
            for bit in range(8):
                token_id = 8 * int(position) + bit
                if mask[position] >> bit & 1 and token_id not in self.eos_token_ids:
                    yield token_id

    def _grammar(self, source: str) -> str:
        """Returns the grammar of a source in Lark, GBNF or EBNF."""
        lark = usable_rules(lark_rules(source))
        unmatchable = unmatchable_rule(lark)
        if unmatchable is not None:
            raise ValueError(f"nothing matches the rule {unmatchable}")
        return str(LLMatcher.grammar_from_lark(with_token_ids(lark, self.special_tokens)))

    def _structural_tag(self, source: str) -> str:
        return structural_tag(source, self._inner_tokens, self._compile_part)

    def _rules(self, tree: Node) -> str:
        lark = tree_rules(tree, self.special_tokens, self.eos_token_ids)
        return str(LLMatcher.grammar_from_lark(lark))

    def _compile_part(self, kind: GrammarKind, source: str) -> str:
        """Compiles a grammar within another one, which is tried by itself."""
        found = self._to_llguidance[kind](source)
        self._matcher(Grammar(kind, source), found)
        return found
