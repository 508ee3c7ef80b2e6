"""Compiles grammars with llguidance."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from fastovms import grammar_tree as tree
from fastovms.grammar.enforceable import fault_of, patterns_of
from fastovms.grammar.json_schema import usable_rules, usable_schema
from fastovms.grammar.lark import OPAQUE, unmatchable_rule
from fastovms.grammar.state import (
    MAX_CACHED_BYTES,
    MAX_FORCED_TOKENS,
    TOO_MANY_FORCED,
    CompiledGrammar,
    GrammarCache,
    GrammarState,
    GrammarTimeBudget,
    UnfinishableGrammar,
    UnusableGrammar,
    first_line,
)
from fastovms.grammar.structural_tag import lark_rules, structural_tag
from fastovms.grammar_tree import Node
from fastovms.params import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


_JSON_OPTIONS: JsonCompileOptions = {"whitespace_flexible": False, "coerce_one_of": True}
"""Options for JSON: compact, because with free white space a small model may write spaces
forever."""


def framed(rules: str, answer: str) -> str:
    """Returns several grammars in llguidance's JSON format: the first, `rules`, constrains the
    whole text and refers to `answer`. Without `answer`, returns the Lark grammar unchanged."""
    grammars = (
        json.loads(answer)["grammars"] if answer.startswith("{") else [{"lark_grammar": answer}]
    )
    first = {**grammars[0], "name": "answer"}
    return json.dumps({"grammars": [{"lark_grammar": rules}, first, *grammars[1:]]})


def _json_schema(source: str) -> str:
    source = usable_schema(source)
    return str(LLMatcher.grammar_from_json_schema(source, overrides=_JSON_OPTIONS))


def _choice(source: str) -> str:
    texts: list[str] = json.loads(source)
    if not texts:
        raise ValueError("a choice must have at least one string")
    alternatives = " | ".join(map(json.dumps, texts))
    return str(LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives}"))


WRITERS: Final[Mapping[GrammarKind, Callable[[str], str]]] = {
    GrammarKind.JSON_SCHEMA: _json_schema,
    GrammarKind.JSON_OBJECT: lambda _: _json_schema('{"type": "object"}'),
    GrammarKind.REGEX: lambda source: str(LLMatcher.grammar_from_regex(source)),
    GrammarKind.CHOICE: _choice,
    GrammarKind.CALLS: str,  # the source is a finished grammar
}
"""Functions that convert each kind of grammar that needs no tokenizer. An invalid source raises
ValueError, or an exception of llguidance."""


_MARK = "\ue000"
"""The character in the new names, from Unicode's private use area."""

_LARK_PIECES = re.compile(rf"{OPAQUE}|(?P<name><[^<>\s]+>)")


class RenamedTokens(NamedTuple):
    """A tokenizer whose special tokens are renamed, so that no text matches them. llguidance
    tokenizes forced text like the tokenizer, which makes one token of a special token's name: a
    grammar in which `<tool_call>` is plain text would fail there. Grammars refer to special tokens
    by id instead.

    Attributes:
        tokenizer_json: the tokenizer, with renamed special tokens.
        special_tokens: token ids by original name.
    """

    tokenizer_json: str
    special_tokens: dict[str, int]


def without_names(tokenizer_json: str) -> RenamedTokens:
    """Returns the tokenizer with its special tokens renamed. Raises ValueError if the text is not a
    tokenizer.json."""
    try:
        tokenizer = orjson.loads(tokenizer_json)
        special_tokens = _hide(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the file does not describe a tokenizer: {error!r}") from error
    return RenamedTokens(orjson.dumps(tokenizer).decode(), special_tokens)


def _hide(tokenizer: dict[str, Any]) -> dict[str, int]:
    special_tokens: dict[str, int] = {}
    for token in tokenizer.get("added_tokens") or ():
        name = token["content"]
        if token["special"] or (name[:1] == "<" and name[-1:] == ">"):  # llguidance's test
            special_tokens[name] = token["id"]
            token["content"] = _hidden(name)
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        for name in special_tokens.keys() & vocab.keys():
            vocab[_hidden(name)] = vocab.pop(name)
    else:
        for entry in vocab:  # an entry is a token and its score
            if entry[0] in special_tokens:
                entry[0] = _hidden(entry[0])
    if model.get("unk_token") in special_tokens:
        model["unk_token"] = _hidden(model["unk_token"])
    return special_tokens


def with_token_ids(lark: str, names: Mapping[str, int]) -> str:
    """Returns Lark rules that refer to special tokens by their ids, instead of these names."""

    def by_id(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<[{names[name]}]>" if name in names else match[0]

    return _LARK_PIECES.sub(by_id, lark)


def _hidden(name: str) -> str:
    # Keep the first and the last character: llguidance may recognize special tokens by them.
    return name[:1] + _MARK + name[1:]


# At most one space after a colon or a comma, as models write them. Without the limit some models
# would write white space endlessly.
_TREE_JSON_OPTIONS: Final = json.dumps(
    {
        "x-guidance": {
            "whitespace_flexible": False, "key_separator": ": ?", "item_separator": ", ?",
            "coerce_one_of": True,
        }
    }
)  # fmt: skip
_NEEDS_ESCAPE: Final = re.compile(r"\\?.", re.DOTALL)
_ESCAPES: Final = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}


_Inline = tree.Literal | tree.Tag | tree.Answer | tree.InOrder | tree.OneOf | tree.Repeat
"""The parts that are written inline in another part's rule."""

_Ruled = (
    tree.Until | tree.TriggeredTag | tree.FirstTag | tree.Regex | tree.OtherText | tree.TextBefore
    | tree.Json | tree.Several | tree.Separated | tree.OtherTag
)  # fmt: skip
"""The parts that get a rule of their own, so that they are written only once."""


def tree_rules(
    root: Node, special_tokens: Mapping[str, int], end_token_ids: Collection[int]
) -> str:
    """Returns the Lark rules of a tree; `@answer` takes the place of `Answer`. Raises ValueError if
    a schema in the tree cannot be used. The rules depend on the vocabulary: plain text never forms
    a special token, and a special token does not match plain text, so a rule must know which of the
    two a tag is.

    Args:
        special_tokens: ids by text.
        end_token_ids: the tokens that end generation. Each is used only where a tag is that token,
            as `<|call|>` of gpt-oss, or where the grammar ends.
    """
    return _RuleWriter(special_tokens, end_token_ids).source(root)


class _RuleWriter:
    """Builds the Lark rules of one tree."""

    def __init__(self, special_tokens: Mapping[str, int], end_token_ids: Collection[int]) -> None:
        self._special_tokens = special_tokens
        self._inner_token_ids = set(special_tokens.values()).difference(end_token_ids)
        self._end_token_ids = end_token_ids
        self._lines = [f"ANY_TEXT: {_terminal(tree.ANY_TEXT)}"]
        self._names: dict[Node, str] = {}

    def source(self, root: Node) -> str:
        start = self._expression(root)
        return "\n".join([*self._lines, f"start: {start}"])

    def _expression(self, node: Node) -> str:
        """Returns the body of a Lark rule for a part within a rule."""
        return self._inline(node) if isinstance(node, _Inline) else self._name(node)

    def _name(self, node: Node) -> str:
        """Returns the name of a part's rule. Equal parts share one rule."""
        if node not in self._names:
            self._names[node] = (
                self._add("part", self._inline(node))
                if isinstance(node, _Inline)
                else self._add_rule(node)
            )
        return self._names[node]

    def _inline(self, node: _Inline) -> str:
        match node:
            case tree.Literal(text):
                return json.dumps(text)
            case tree.Tag(text):
                return self._tag(text)
            case tree.Answer():
                return "@answer"
            case tree.InOrder(items):
                return " ".join(map(self._expression, items)) or '""'
            case tree.OneOf(items):
                return f"({' | '.join(map(self._expression, items))})"
            case tree.Repeat(item):
                return f"({self._expression(item)})*"

    def _add_rule(self, node: _Ruled) -> str:
        """Adds the rule of a part, and returns its name."""
        match node:
            case tree.Until(tag):
                return self._add("until", self._until(tag))
            case tree.TriggeredTag(tag, rest, once):
                call = f"{self._until(tag)} {self._expression(rest)}"
                without = self._text_without([tag])
                return self._add("text", f"{call} | {without}" if once else f"({call})* {without}")
            case tree.FirstTag(cases, must_come):
                return self._add("text", self._first_tag(cases, must_come=must_come))
            case tree.Regex():
                return self._add("TERMINAL", _terminal(node))
            case tree.OtherText(begins, tags):
                barred = rf"\s*({'|'.join(map(re.escape, begins))})(.|\n)*"
                held = [rf"(.|\n)*{re.escape(tag)}(.|\n)*" for tag in tags]
                return self._add("TERMINAL", _terminal(tree.ANY_TEXT.excluding(barred, *held)))
            case tree.TextBefore(tag, body, gap):
                text = f"({_terminal(body)}) {json.dumps(gap)}" if gap else _terminal(body)
                terminal = self._add("TERMINAL", text)
                return self._add("text", self._ended(terminal, tag))
            case tree.Json(schema):
                usable = usable_schema(schema, name="a schema in it")
                return self._add("json", f"%json {_with_options(usable)}")
            case tree.Several(part, separator):
                item = self._name(part)
                more = self._add("more", f"{self._expression(separator)} {item}")
                return self._add("items", f"{item} {more}*")
            case tree.Separated(items, separator, more):
                return self._separated(items, separator, more)
            case tree.OtherTag(before, patterns, after, names):
                first, *also = [
                    f"{re.escape(before)}({pattern}){re.escape(after)}" for pattern in patterns
                ]
                others = [re.escape(f"{before}{name}{after}") for name in names]
                return self._add("TERMINAL", _terminal(tree.Regex(first, (*also,), (*others,))))

    def _until(self, tag: str) -> str:
        return self._first_tag(((tag, tree.EMPTY),), must_come=True)

    def _first_tag(self, cases: Sequence[tuple[str, Node]], *, must_come: bool) -> str:
        tags = [tag for tag, _ in cases]
        rests = [self._expression(rest) for _, rest in cases]
        if all(map(self._is_token, tags)):
            found = [f"{self._tag(tag)} {rest}" for tag, rest in zip(tags, rests, strict=True)]
            end = "" if must_come else ' | ""'
            return f"{self._text_without(tags)} ({' | '.join(found)}{end})"
        found = [
            f"{self._ended('ANY_TEXT', tag)} {rest}" for tag, rest in zip(tags, rests, strict=True)
        ]
        end = "" if must_come else " | ANY_TEXT"
        return f"{self._tokens_between(tags)}({' | '.join(found)}{end})"

    def _ended(self, text: str, tag: str) -> str:
        """Returns the body of a Lark rule for text that ends with the first occurrence of a tag."""
        pieces = self._pieces(tag)
        if isinstance(pieces[0], int):
            return f"{text} {self._tag(tag)}"
        if len(pieces) == 1:
            return self._add("end", f"{text} {self._tag(tag)}", is_lazy=True)
        start = self._add("TERMINAL", f"{text} {json.dumps(pieces[0])}")
        return f"{start} {_joined(pieces[1:])}"

    def _text_without(self, tags: Sequence[str]) -> str:
        """Returns the body of a Lark rule for any text and special tokens without these tags."""
        if not all(map(self._is_token, tags)):
            return f"{self._tokens_between(tags)}ANY_TEXT"
        ids = {self._first_token(tag) for tag in tags}
        return f"<[^{_ranges(sorted({*filter(None, ids), *self._end_token_ids}))}]>*"

    def _tokens_between(self, tags: Sequence[str]) -> str:
        """Returns the body of a Lark rule for text with special tokens except those in the tags,
        ending with a special token."""
        barred = {self._first_token(tag) for tag in tags}
        others = sorted(self._inner_token_ids - barred)
        return f"(ANY_TEXT <[{_ranges(others)}]>)* " if others else ""

    def _is_token(self, tag: str) -> bool:
        """Returns whether a tag is, or begins with, a special token."""
        return isinstance(self._pieces(tag)[0], int)

    def _first_token(self, tag: str) -> int | None:
        return next((piece for piece in self._pieces(tag) if isinstance(piece, int)), None)

    def _pieces(self, tag: str) -> list[str | int]:
        """Returns the special tokens in a tag, as ids, and the strings around them."""
        if tag in self._special_tokens:
            return [self._special_tokens[tag]]
        inside = [text for text in self._special_tokens if text and text in tag]
        if not inside:
            return [tag]
        pattern = "|".join(map(re.escape, sorted(inside, key=len, reverse=True)))
        pieces = re.split(f"({pattern})", tag)
        return [self._special_tokens.get(piece, piece) for piece in pieces if piece]

    def _separated(
        self, items: Sequence[tuple[Node, bool]], separator: str, more: Node | None
    ) -> str:
        # `first`: the rule for the remaining items if no item precedes them; `rest`: if one
        # does.
        first, rest = '""', '""'
        if more is not None:
            item = self._name(more)
            rest = self._add("rest", f"({json.dumps(separator)} {item})*")
            first = self._add("first", f'{item} {rest} | ""')
        for node, is_required in reversed(items):
            item = self._name(node)
            absent = "" if is_required else f" | {first}"
            first = self._add("first", f"{item} {rest}{absent}")
            absent = "" if is_required else f" | {rest}"
            rest = self._add("rest", f"{json.dumps(separator)} {item} {rest}{absent}")
        return first

    def _add(self, kind: str, expression: str, *, is_lazy: bool = False) -> str:
        name = f"{kind}{len(self._lines)}"
        self._lines.append(f"{name}{'[lazy]' if is_lazy else ''}: {expression}")
        return name

    def _tag(self, text: str) -> str:
        return _joined(self._pieces(text))


def _joined(pieces: Sequence[str | int]) -> str:
    """Returns the body of a Lark rule for consecutive strings and special tokens."""
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece) for piece in pieces
    )


def _terminal(regex: tree.Regex) -> str:
    matched = [_slashed(pattern) for pattern in (regex.pattern, *regex.also)]
    return " & ".join([*matched, *(f"~{_slashed(pattern)}" for pattern in regex.unlike)])


def _slashed(pattern: str) -> str:
    """Returns a regular expression in Lark's syntax, between slashes."""
    escaped = _NEEDS_ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0]), pattern)
    return f"/{escaped}/"


def _with_options(schema: str) -> str:
    if not schema.startswith("{"):
        return schema
    return f"{schema[:-1]}{', ' if len(schema) > 2 else ''}{_TREE_JSON_OPTIONS[1:]}"


def _ranges(token_ids: Sequence[int]) -> str:
    """Returns ascending ids as ranges: `0-10,12-12`."""
    starts = [b for a, b in pairwise([-2, *token_ids]) if b != a + 1]
    ends = [a for a, b in pairwise([*token_ids, -2]) if b != a + 1]
    return ",".join(f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


_MIN_BYTES: Final = 64 * 2**10
_BYTES_PER_CHARACTER: Final = 64
"""The estimated size of a compiled grammar, in bytes per character of its source, until it is
measured."""

_TRIAL_STEPS: Final = 8

_MAX_PATTERNS: Final = 64
"""The maximum number of patterns of a refused schema that are tried one by one."""

_DEAD_END: Final = "NoExtensionBias"
"""llguidance's error if no token is allowed."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=400_000,  # sufficient for a choice of 10,000 strings
    step_lexer_fuel=100_000,
    step_max_items=5_000,
    verbose_errors=False,
)
"""Limits of a grammar's cost, at compilation and at each token: about 20 ms for a very ambiguous
grammar. A grammar that needs more fails."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe. Compile in a thread, because it may take
    long; compiling releases the GIL. `start` then finds the result in the cache. llguidance may
    overflow the stack or never return for a client's grammar: try such a grammar first
    (`parts.grammars.trials`)."""

    def __init__(
        self,
        tokenizer_json: str,
        *,
        vocab_size: int | None,
        eos_token_ids: Sequence[int],
        max_cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        """Raises ValueError if `tokenizer_json` is invalid.

        Args:
            tokenizer_json: the content of a Hugging Face tokenizer.json.
            vocab_size: the model's vocabulary size; None = the tokenizer's.
        """
        eos = list(eos_token_ids) or None
        self.eos_token_ids = frozenset(eos_token_ids)
        nameless, self.special_tokens = without_names(tokenizer_json)
        if eos is not None:  # if None, llguidance finds an end token by its name
            tokenizer_json = nameless
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
        self._to_llguidance: Mapping[GrammarKind, Callable[[str], str]] = {
            **WRITERS,
            GrammarKind.GRAMMAR: self._grammar,
            GrammarKind.STRUCTURAL_TAG: lambda source: structural_tag(
                source, self._inner_tokens, self._compile_part
            ),
        }
        # The special tokens that may occur in generated text, without end tokens.
        self._inner_tokens = {
            text: token_id
            for text, token_id in self.special_tokens.items()
            if token_id not in self.eos_token_ids
        }
        self._cache = GrammarCache(max_cached_bytes)

    @property
    def vocab_size(self) -> int:
        """The number of token ids that a mask of allowed tokens covers."""
        size: int = self._tokenizer.vocab_size
        return size

    def cached(self, grammar: Grammar) -> CompiledGrammar | None:
        """Returns the compiled grammar; None = not cached."""
        return self._cache.get(grammar)

    def compile(self, grammar: Grammar, *, num_bytes: int | None = None) -> CompiledGrammar:
        """Compiles the grammar unless it is cached. Raises UnfinishableGrammar if it can be
        compiled but no text can be completed, and UnusableGrammar if it is malformed or
        unsatisfiable. `num_bytes` is the measured size of the compiled grammar in bytes; None =
        unknown."""
        found = self._cache.get(grammar)
        if found is not None:
            return found
        try:
            compiled = self._compiled(grammar, num_bytes)
        except UnfinishableGrammar:
            raise
        except UnusableGrammar as error:
            place = self._place_of_fault(grammar)
            if not place:
                raise
            raise UnusableGrammar(grammar, place) from error
        self._cache.put(grammar, compiled)
        return compiled

    def _compiled(self, grammar: Grammar, num_bytes: int | None) -> CompiledGrammar:
        """Compiles the grammar; see `compile`."""
        try:
            answer = self._to_llguidance[grammar.kind](grammar.source)
            rules = "" if grammar.tree is None else self._rules(grammar.tree)
        except UnfinishableGrammar as error:
            raise UnfinishableGrammar(grammar, error.message) from error
        except Exception as error:  # llguidance raises ValueError for invalid grammars
            raise UnusableGrammar(grammar, first_line(str(error))) from error
        if answer and rules:
            self._matcher(grammar, answer)
            answer = framed(rules, answer)
        source = answer or rules
        matcher = self._matcher(grammar, source)
        num_characters = len(source)
        if num_bytes is None:
            num_bytes = _BYTES_PER_CHARACTER * num_characters
        return CompiledGrammar(matcher, max(_MIN_BYTES, num_bytes) + 4 * num_characters)

    def _place_of_fault(self, grammar: Grammar) -> str:
        """Returns the path of the keyword in a JSON schema that llguidance refuses, and the reason;
        "" = unknown. llguidance itself does not report the path."""
        if grammar.kind is not GrammarKind.JSON_SCHEMA:
            return ""
        with contextlib.suppress(ValueError, RecursionError):
            schema = json.loads(grammar.source)
            if fault := fault_of(schema):
                return fault
            for place, pattern in islice(patterns_of(schema), _MAX_PATTERNS):
                one = json.dumps({"type": "string", "pattern": pattern})
                try:
                    self._compiled(Grammar(grammar.kind, one), None)
                except UnfinishableGrammar:
                    continue
                except UnusableGrammar as error:
                    shown = json.dumps(pattern, ensure_ascii=False)
                    return f"{place} {shown} cannot be used: {error.reason}"
        return ""

    def start(
        self, grammar: Grammar, num_prompt_tokens: int, time_budget: GrammarTimeBudget | None = None
    ) -> GrammarState:
        """Returns the state of a new sample, at the beginning of the grammar. Compiles the grammar
        first if needed. `time_budget` is shared by all samples of the request; None = a new one."""
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

    def starter(self, grammar: Grammar, num_prompt_tokens: int) -> Callable[[], GrammarState]:
        """Returns a function that creates the state of one more sample of a request; see `start`.
        All samples share one time budget."""
        return partial(self.start, grammar, num_prompt_tokens, GrammarTimeBudget())

    def _matcher(self, grammar: Grammar, source: str) -> LLMatcher:
        """Returns llguidance's matcher of a grammar. Raises UnusableGrammar if the grammar is
        malformed, or no text can match its beginning; within a tree, such a grammar would make
        llguidance loop endlessly."""
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise UnusableGrammar(grammar, first_line(matcher.get_error()))
        self._try(grammar, matcher.deep_copy())
        return matcher

    def _try(self, grammar: Grammar, matcher: LLMatcher) -> None:
        """Advances by some tokens, to detect grammars that are too complex before a sample
        starts."""
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
        """Yields the allowed tokens that are not end tokens, in ascending order."""
        for position in np.flatnonzero(mask):
            for bit in range(8):
                token_id = 8 * int(position) + bit
                if mask[position] >> bit & 1 and token_id not in self.eos_token_ids:
                    yield token_id

    def _grammar(self, source: str) -> str:
        """Returns the llguidance grammar of a source in Lark, GBNF or EBNF."""
        lark = usable_rules(lark_rules(source))
        unmatchable = unmatchable_rule(lark)
        if unmatchable is not None:
            raise ValueError(f"no text matches the rule {unmatchable}")
        return str(LLMatcher.grammar_from_lark(with_token_ids(lark, self.special_tokens)))

    def _rules(self, tree: Node) -> str:
        lark = tree_rules(tree, self.special_tokens, self.eos_token_ids)
        return str(LLMatcher.grammar_from_lark(lark))

    def _compile_part(self, kind: GrammarKind, source: str) -> str:
        """Compiles a grammar that is part of another one, after testing it separately."""
        found = self._to_llguidance[kind](source)
        self._matcher(Grammar(kind, source), found)
        return found
