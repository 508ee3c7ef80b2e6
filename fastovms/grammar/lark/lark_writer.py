"""Writes rules of llguidance's Lark for texts in which the model's special tokens may stand.

A rule cannot name a special token by its text: text never spells one. So each text is cut where
it names one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fastovms.grammar_tree import ANY_TEXT

_ANY_TEXT = f"/{ANY_TEXT.pattern}/"

OPAQUE = r""""(?:\\.|[^"\\\n])*"|(?://|\#)[^\n]*|/(?:\\.|[^/\\\n])+/"""
"""A pattern of the texts, comments and regular expressions of rules, within which nothing else is
looked for."""


class LarkPart(NamedTuple):
    """A piece of a text.

    Attributes:
        is_terminal: whether it may be part of a terminal. Such pieces beside each other become one,
            within which no border between them has to be found.
    """

    expression: str
    is_terminal: bool


class LarkWriter:
    """Rules under construction.

    Args:
        special_tokens: ids by text.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._lines: list[str] = []

    def source(self, start: str) -> str:
        return "\n".join([*self._lines, f"start: {start}"])

    def rule(self, expression: str) -> str:
        return self._named("rule", expression)

    def terminal(self, expression: str) -> str:
        return self._named("TERMINAL", expression)

    def lazy(self, expression: str) -> str:
        """Returns terminals that end as soon as they may."""
        name = f"lazy{len(self._lines)}"
        self._lines.append(f"{name}[lazy]: {expression}")
        return name

    def literal(self, text: str) -> list[LarkPart]:
        """Returns an expression of the text itself, and of tokens where it names special ones."""
        return list(map(as_part, self.pieces(text)))

    def pieces(self, text: str) -> list[str | int]:
        """Returns texts and ids of special tokens, in turn as they stand in `text`."""
        found: list[str | int] = []
        position = 0
        for match in self._special.finditer(text):
            found += [text[position : match.start()], self._special_tokens[match[0]]]
            position = match.end()
        return [piece for piece in [*found, text[position:]] if piece != ""]

    def special_token_at_start(self, text: str) -> str:
        """Returns the special token that a text begins with; empty if there is none."""
        match = self._special.match(text)
        return match[0] if match else ""

    def special_tokens_with(self, text: str) -> list[int]:
        """Returns the ids of those special tokens in whose own text it is."""
        return [id_ for its_text, id_ in self._special_tokens.items() if text in its_text]

    def other_special_tokens(self, token_ids: Iterable[int]) -> str:
        """Returns an expression of one special token that is none of these; empty if there is
        none."""
        barred = set(token_ids)
        others = sorted(id_ for id_ in self._special_tokens.values() if id_ not in barred)
        return f"<[{','.join(map(str, others))}]>" if others else ""

    def join(self, parts: Sequence[LarkPart]) -> str:
        """Returns an expression of a rule that has these pieces one after another."""
        expressions = []
        for is_terminal, run in groupby(parts, key=lambda part: part.is_terminal):
            joined = " ".join(part.expression for part in run)
            expressions.append(self.terminal(joined) if is_terminal else joined)
        return " ".join(expressions) or '""'

    def either(self, choices: Sequence[Sequence[LarkPart]]) -> LarkPart:
        if all(part.is_terminal for choice in choices for part in choice):
            joined = [" ".join(part.expression for part in choice) or '""' for choice in choices]
            return LarkPart(f"({' | '.join(joined)})", True)
        return LarkPart(f"({' | '.join(map(self.join, choices))})", False)

    def repeat(self, parts: Sequence[LarkPart], times: str) -> LarkPart:
        """Returns an expression that repeats another.

        Args:
            times: an operator, as `?` or `{2,3}`.
        """
        if all(part.is_terminal for part in parts):
            joined = " ".join(part.expression for part in parts) or '""'
            return LarkPart(f"({joined}){times}", True)
        return LarkPart(f"({self.join(parts)}){times}", False)

    def _named(self, prefix: str, expression: str) -> str:
        name = f"{prefix}{len(self._lines)}"
        self._lines.append(f"{name}: {expression}")
        return name


class FreeText:
    """Writes any text, special tokens in it too, up to the first of some texts.

    Args:
        stops: where it may end, none empty. What begins with a text and goes on with a special
            token stops only there.
        excludes: what must not be in it, beside the stops.
    """

    def __init__(
        self, writer: LarkWriter, stops: Sequence[str], excludes: Sequence[str] = ()
    ) -> None:
        self._writer = writer
        pieces = [writer.pieces(text) for text in (*stops, *excludes)]
        token_ids = [next((p for p in found if isinstance(p, int)), None) for found in pieces]
        texts = [str(p[0]) for p, id_ in zip(pieces, token_ids, strict=True) if id_ is None]
        self._text = self._without(texts)
        self._text_before_stop = self._without(
            [text for text in excludes if text in texts and text not in stops]
        )
        barred = [id_ for id_ in token_ids if id_ is not None]
        for text in texts:
            barred += writer.special_tokens_with(text)
        others = writer.other_special_tokens(barred)
        self._gap = f"({self._text} {others})* " if others else ""

    def to_end(self) -> str:
        """Returns an expression of text in which none of the stops comes."""
        return self._gap + self._text

    def until(self, stop: str) -> str:
        """Returns an expression of text up to and including one of the stops."""
        return self._gap + self._until(self._writer.pieces(stop))

    def _until(self, pieces: list[str | int]) -> str:
        writer = self._writer
        first, text = pieces[0], self._text
        if isinstance(first, str):
            if len(pieces) == 1:
                return writer.lazy(f"{self._text_before_stop} {quoted(first)}")
            text, pieces = writer.terminal(f"{_ANY_TEXT} {quoted(first)}"), pieces[1:]
        return f"{text} {writer.join(list(map(as_part, pieces)))}"

    def _without(self, texts: Sequence[str]) -> str:
        if not texts:
            return self._writer.terminal(_ANY_TEXT)
        barred = " | ".join(map(quoted, texts))
        return self._writer.terminal(f"{_ANY_TEXT} & ~({_ANY_TEXT} ({barred}) {_ANY_TEXT})")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def as_part(piece: str | int) -> LarkPart:
    """Returns the piece of a text or of a special token's id."""
    return (
        LarkPart(f"<[{piece}]>", False) if isinstance(piece, int) else LarkPart(quoted(piece), True)
    )
