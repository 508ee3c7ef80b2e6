"""Compiles grammars that a sample must follow, once each, and applies them as a mask over the
vocabulary at each token.

llguidance may overflow the stack or never return on what a client has written: whatever compiles
for a client has it tried first (`backends.trials`).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from fastovms.errors import InvalidField
from fastovms.grammar.gbnf import lark_rules
from fastovms.grammar.grammar_cache import MAX_CACHED_BYTES, CompiledGrammar, GrammarCache
from fastovms.grammar.grammar_scout import GrammarScout
from fastovms.grammar.grammar_time_budget import GrammarTimeBudget
from fastovms.grammar.json_schema import usable_rules, usable_schema
from fastovms.grammar.special_tokens import with_token_ids, without_names
from fastovms.grammar.structural_tag import structural_tag
from fastovms.grammar.tree_rules import tree_rules
from fastovms.grammar.unmatchable_rules import unmatchable_rule
from fastovms.grammar_tree import Node
from fastovms.params import Grammar, GrammarKind, Refusal

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_MIN_BYTES = 64 * 2**10
_BYTES_PER_CHARACTER = 64
"""What a compiled grammar is taken to hold, for each character of its source, where nobody has
measured it."""

MAX_FORCED_TOKENS = 8192
"""The most tokens that may follow without a choice: each step looks at all of them, 1 to 3 ms
here."""

_MAX_FORCED = f"more than {MAX_FORCED_TOKENS} tokens would follow without a choice"

_TRIAL_STEPS = 8

_JSON_OPTIONS: JsonCompileOptions = {"whitespace_flexible": False, "coerce_one_of": True}
"""Options of JSON: it is compact, since free white space would let a small model write spaces for
ever."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=400_000,  # enough to choose from 10,000 strings
    step_lexer_fuel=100_000,
    step_max_items=5_000,
    verbose_errors=False,
)
"""Limits of what a grammar may cost when it is compiled, and then at each token: at most some 20
ms, where it is as ambiguous as that. One that needs more fails."""

_TOO_SLOW = "it takes too long"
_RULED_OUT = "other fields of the request rule out every token that may follow"


class GrammarState:
    """The place of one sample in its grammar. It is a `LogitsProcessor`."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        matcher: LLMatcher,
        vocab_size: int,
        num_prompt_tokens: int,
        time_budget: GrammarTimeBudget,
        error: str = "",
    ) -> None:
        """
        Args:
            matcher: a copy of the compiled one.
            time_budget: that of all samples of the request.
        """
        self._compiled = compiled
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_read = num_prompt_tokens
        self._time_budget = time_budget
        self._error = error

    @property
    def error(self) -> str:
        """Why the grammar cannot go on (too complex, say); empty while all is well."""
        if self._error:
            return self._error
        if self._time_budget.is_used_up:
            return _TOO_SLOW
        return _reason(self._matcher.get_error()) if self._matcher.is_error() else ""

    def __call__(self, logits: NDArray[np.float32], token_ids: array[int]) -> None:
        if self._time_budget.is_used_up:
            return
        words = np.empty((self._vocab_size + 31) // 32, np.int32)
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_error():
                return
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        logits[: bits.size][bits[: logits.size] == 0] = -np.inf
        logits[bits.size :] = -np.inf

    def give_up(self) -> None:
        """Takes note that something else in the request rules out all that the grammar allows
        now."""
        if not self._matcher.is_accepting():
            self._error = _RULED_OUT

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        """Returns the tokens that must follow `token_ids`, where the grammar leaves no choice."""
        if self._error or self._time_budget.is_used_up:
            return []
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return []
            forced: list[int] = self._matcher.compute_ff_tokens()
        if len(forced) > MAX_FORCED_TOKENS:
            self._error = _MAX_FORCED
        return forced

    def scout(self, token_ids: array[int]) -> GrammarScout | None:
        """Returns what tries guesses after `token_ids`; None where text or time are over."""
        if self._error or self._time_budget.is_used_up:
            return None
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return None
            return GrammarScout(self._matcher.deep_copy(), self._time_budget)

    def __copy__(self) -> GrammarState:
        return GrammarState(
            self._compiled,
            self._matcher.deep_copy(),
            self._vocab_size,
            self._num_read,
            self._time_budget,
            self._error,
        )

    def _read(self, token_ids: array[int]) -> None:
        if len(token_ids) > self._num_read:
            self._matcher.consume_tokens(token_ids[self._num_read :].tolist())
            self._compiled.num_followed += len(token_ids) - self._num_read
            self._num_read = len(token_ids)


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
            **_TO_LLGUIDANCE,
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
            raise UnusableGrammar(grammar, _reason(str(error))) from error
        if answer and rules:
            self._matcher(grammar, answer)
            answer = _framed(rules, answer)
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
            raise UnusableGrammar(grammar, _reason(matcher.get_error()))
        self._try(grammar, matcher.deep_copy())
        return matcher

    def _try(self, grammar: Grammar, matcher: LLMatcher) -> None:
        """Goes some steps, so that what is too much is known before any sample is begun."""
        has_chosen = False
        for _ in range(_TRIAL_STEPS):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            forced: list[int] = [] if matcher.is_stopped() else matcher.compute_ff_tokens()
            if len(forced) > MAX_FORCED_TOKENS:
                raise UnfinishableGrammar(grammar, _MAX_FORCED)
            if not forced and not matcher.is_stopped():
                forced = list(islice(self._possible(mask), 1))
                has_chosen = True
            matcher.consume_tokens(forced)
            if matcher.is_error():
                error = _reason(matcher.get_error())
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
        lark = tree_rules(tree, self._inner_tokens, self.eos_token_ids)
        return str(LLMatcher.grammar_from_lark(lark))

    def _compile_part(self, kind: GrammarKind, source: str) -> str:
        """Compiles a grammar within another one, which is tried by itself."""
        found = self._to_llguidance[kind](source)
        self._matcher(Grammar(kind, source), found)
        return found


_DEAD_END = "NoExtensionBias"
_REGEX_DRAWN = "regex parse error:"
_WRONG_REGEX = "error: "


def dead_end(grammar: Grammar, error: str) -> Refusal:
    """Returns the error that no sample of a grammar can be finished, which only trying could
    tell."""
    return Refusal(
        f"{grammar.param}: the {grammar.kind.value} cannot go on: {error}", param=grammar.param
    )


class UnusableGrammar(InvalidField):
    """A grammar that is malformed or impossible.

    Attributes:
        reason: what is wrong with it.
        is_certain: whether that would be found again.
    """

    def __init__(self, grammar: Grammar, reason: str, *, is_certain: bool = True) -> None:
        message = f"the {grammar.kind.value} cannot be used: {reason}"
        super().__init__(message, param=grammar.param)
        self.reason = reason
        self.is_certain = is_certain


class UnfinishableGrammar(UnusableGrammar):
    """A grammar that can be compiled, but not followed. With other tokens perhaps it can."""


def _reason(error: str) -> str:
    """Returns the first line of a message: the parser's state and the whole grammar follow. What is
    wrong with a regular expression stands below a drawing of it."""
    lines = error.strip().splitlines() or ["unknown error"]
    found = [line for line in lines if line.startswith(_WRONG_REGEX)]
    if not found or not lines[0].endswith(_REGEX_DRAWN):
        return lines[0]
    place = lines[0].removesuffix(_REGEX_DRAWN).rstrip(": ") or "invalid regex"
    return f"{found[-1].removeprefix(_WRONG_REGEX)} ({place})"


def _framed(rules: str, answer: str) -> str:
    """Returns several grammars in llguidance's JSON form: the first is the whole text and names the
    others. A Lark grammar stands for itself otherwise."""
    grammars = (
        json.loads(answer)["grammars"] if answer.startswith("{") else [{"lark_grammar": answer}]
    )
    first = {**grammars[0], "name": "answer"}
    return json.dumps({"grammars": [{"lark_grammar": rules}, first, *grammars[1:]]})


def _json_schema(source: str) -> str:
    source = usable_schema(source)
    return str(LLMatcher.grammar_from_json_schema(source, overrides=_JSON_OPTIONS))


def _json_object(source: str) -> str:
    return _json_schema('{"type": "object"}')


def _regex(source: str) -> str:
    return str(LLMatcher.grammar_from_regex(source))


def _choice(source: str) -> str:
    texts: list[str] = json.loads(source)
    if not texts:
        raise ValueError("there is nothing to choose from")
    alternatives = " | ".join(map(json.dumps, texts))
    return str(LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives}"))


_TO_LLGUIDANCE: Mapping[GrammarKind, Callable[[str], str]] = {
    GrammarKind.JSON_SCHEMA: _json_schema,
    GrammarKind.JSON_OBJECT: _json_object,
    GrammarKind.REGEX: _regex,
    GrammarKind.CHOICE: _choice,
    GrammarKind.CALLS: str,  # the tree says all
}
