"""Renders grammars that are trees as rules of Lark that llguidance understands.

A rule cannot tell by itself whether a tag is a special token of the vocabulary or plain text: text
never spells a special token, and a token that stands for a text is not matched by it. So the rules
differ between vocabularies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

from fastovms import grammar_tree as tree
from fastovms.grammar.json_schema import usable_schema
from fastovms.grammar_tree import Node

# A space or none after a colon or a comma, as models write them; never more, which some would do
# for ever.
_JSON_OPTIONS: Final = json.dumps(
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
"""The parts that are written where they stand."""

_Ruled = (
    tree.Until | tree.TriggeredTag | tree.FirstTag | tree.Regex | tree.OtherText | tree.TextBefore
    | tree.Json | tree.Several | tree.Separated | tree.OtherTag
)  # fmt: skip
"""The parts that are rules of their own, which are written once."""


def tree_rules(
    root: Node, special_tokens: Mapping[str, int], end_token_ids: Collection[int]
) -> str:
    """Returns the rules, in which `@answer` is what stands for `Answer`.

    Args:
        special_tokens: ids by text.
        end_token_ids: the tokens that end a text. Each stands only where a tag is that token, as
            `<|call|>` of gpt-oss, or where the grammar ends.

    Raises:
        ValueError: a schema in it cannot be used.
    """
    return _RuleWriter(special_tokens, end_token_ids).source(root)


class _RuleWriter:
    """Rules under construction."""

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
        """Returns what stands for a part within a rule."""
        return self._inline(node) if isinstance(node, _Inline) else self._name(node)

    def _name(self, node: Node) -> str:
        """Returns the name of a part's rule, of which there is one however often the part stands in
        the tree."""
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
                without = self._without(tag)
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

    def _without(self, tag: str) -> str:
        return self._text_without([tag])

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
        """Returns an expression of a terminal's text and the tag behind it, the first in it."""
        pieces = self._pieces(tag)
        if isinstance(pieces[0], int):
            return f"{text} {self._tag(tag)}"
        if len(pieces) == 1:
            return self._add("end", f"{text} {self._tag(tag)}", is_lazy=True)
        start = self._add("TERMINAL", f"{text} {json.dumps(pieces[0])}")
        return f"{start} {_joined(pieces[1:])}"

    def _text_without(self, tags: Sequence[str]) -> str:
        """Returns an expression of any text, special tokens in it too, without those tags."""
        if not all(map(self._is_token, tags)):
            return f"{self._tokens_between(tags)}ANY_TEXT"
        ids = {self._first_token(tag) for tag in tags}
        return f"<[^{_ranges(sorted({*filter(None, ids), *self._end_token_ids}))}]>*"

    def _tokens_between(self, tags: Sequence[str]) -> str:
        """Returns an expression of text with special tokens that are in none of the tags, up to the
        last."""
        barred = {self._first_token(tag) for tag in tags}
        others = sorted(self._inner_token_ids - barred)
        return f"(ANY_TEXT <[{_ranges(others)}]>)* " if others else ""

    def _is_token(self, tag: str) -> bool:
        """Whether a tag is, or begins with, a special token."""
        return isinstance(self._pieces(tag)[0], int)

    def _first_token(self, tag: str) -> int | None:
        return next((piece for piece in self._pieces(tag) if isinstance(piece, int)), None)

    def _pieces(self, tag: str) -> list[str | int]:
        """Returns the special tokens in a tag and the texts around them."""
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
        # `first`: the items from here on, none being there yet; `rest`: behind another.
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
    """Returns an expression of texts and special tokens, one behind the other."""
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece) for piece in pieces
    )


def _terminal(regex: tree.Regex) -> str:
    matched = [_slashed(pattern) for pattern in (regex.pattern, *regex.also)]
    return " & ".join([*matched, *(f"~{_slashed(pattern)}" for pattern in regex.unlike)])


def _slashed(pattern: str) -> str:
    """Returns an expression as Lark writes it."""
    escaped = _NEEDS_ESCAPE.sub(lambda match: _ESCAPES.get(match[0], match[0]), pattern)
    return f"/{escaped}/"


def _with_options(schema: str) -> str:
    if not schema.startswith("{"):
        return schema
    return f"{schema[:-1]}{', ' if len(schema) > 2 else ''}{_JSON_OPTIONS[1:]}"


def _ranges(token_ids: Sequence[int]) -> str:
    """Returns ascending ids as ranges: `0-10,12-12`."""
    starts = [b for a, b in pairwise([-2, *token_ids]) if b != a + 1]
    ends = [a for a, b in pairwise([*token_ids, -2]) if b != a + 1]
    return ",".join(f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
