"""Finds rules of a Lark grammar that no text can match.

llguidance takes them, and may then follow text that is forced before such a rule for ever, with
the GIL held: `start: /a+/ b` with `b: b` would stop the whole server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

_DEFINITION: Final = re.compile(
    r"^[ \t]*[?!]*([A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*(?:\[[^\]\n]*\])?[ \t]*:", re.MULTILINE
)
_DIRECTIVE: Final = re.compile(r"^[ \t]*%(?!json\b|regex\b|lark\b).*$", re.MULTILINE)
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|->\s*\w+)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[imslux]*|<[^>\n]*>|@\w+|\.\.)
    |(?P<embedded>%(?:json|regex|lark)\s*\{)
    |(?P<optional>[?*]|\{\s*0?\s*,[^}\n]*\}|\{\s*0\s*\}|~\s*0(?:\s*\.\.\s*\d+)?)
    |(?P<repeated>\+|\{[^}\n]*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>[()\[\]|&~])""",
    re.VERBOSE,
)
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"|[{}]')
_MAX_VISITS: Final = 2_000_000
"""How many tokens are read, again for each reference: far beyond what anybody writes."""

_MAX_DEPTH: Final = 250
"""The most rules between one and another that it leads to. llguidance follows them by recursion,
and overflows a stack of 2 MB at 600."""

Token = tuple[str, str]


def unmatchable_rule(lark: str) -> str | None:
    """Returns the first rule that matches nothing, or None. What is no Lark is left to llguidance.

    Raises:
        ValueError: the grammar is too large to tell, or its rules are nested too deeply.
    """
    bodies = _bodies(lark)
    if _depth(bodies) > _MAX_DEPTH:
        raise ValueError(f"its rules lead to one another over more than {_MAX_DEPTH} others")
    users: defaultdict[str, set[str]] = defaultdict(set)
    for name, tokens in bodies.items():
        for kind, text in tokens:
            if kind == "name" and text in bodies:
                users[text].add(name)
    matchable: set[str] = set()
    pending = list(bodies)
    num_visits = 0
    while pending:
        name = pending.pop()
        if name in matchable:
            continue
        num_visits += len(bodies[name])
        if num_visits > _MAX_VISITS:
            raise ValueError("the rules refer to each other too often")
        if _matches(bodies[name], bodies, matchable):
            matchable.add(name)
            pending += users[name]
    return next((name for name in bodies if name not in matchable), None)


def _depth(bodies: dict[str, list[Token]]) -> int:
    """Returns the length of the longest path of references that a search in depth goes along, which
    enters each rule only where it first comes to it, as llguidance does."""
    deepest = 0
    seen: set[str] = set()
    for root in bodies:
        path = [iter([("name", root)])]
        while path:
            for kind, text in path[-1]:
                if kind == "name" and text in bodies and text not in seen:
                    seen.add(text)
                    path.append(iter(bodies[text]))
                    break
            else:
                path.pop()
            deepest = max(deepest, len(path) - 1)
    return deepest


def _matches(tokens: list[Token], rules: dict[str, list[Token]], matchable: set[str]) -> bool:
    """Returns whether some text matches, as far as is known of the rules that it refers to."""
    outer: list[tuple[bool, bool]] = []
    any_before, all_before, last = False, True, True
    for kind, text in tokens:
        if kind in ("text", "name"):
            all_before = all_before and last
            last = kind == "text" or text in matchable or text not in rules
        elif kind == "optional":
            last = True
        elif text == "|":
            any_before = any_before or (all_before and last)
            all_before, last = True, True
        elif text in ("(", "["):
            outer.append((any_before, all_before and last))
            any_before, all_before, last = False, True, True
        elif text in (")", "]") and outer:
            last = text == "]" or any_before or (all_before and last)
            any_before, all_before = outer.pop()
    return any_before or (all_before and last)


def _bodies(lark: str) -> dict[str, list[Token]]:
    """Returns the tokens of each rule and terminal."""
    lark = _DIRECTIVE.sub("", lark)
    starts = list(_DEFINITION.finditer(lark))
    ends = [*(start.start() for start in starts[1:]), len(lark)][: len(starts)]
    return {
        start[1]: _tokens(lark[start.end() : end]) for start, end in zip(starts, ends, strict=True)
    }


def _tokens(body: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(body):
        found = _TOKEN.match(body, position)
        if found is None:
            position += 1
            continue
        position = found.end()
        kind = str(found.lastgroup)
        if kind == "embedded":
            position = _after_braces(body, position)
            kind = "text"
        if kind not in ("blank", "repeated"):
            tokens.append((kind, found[0]))
    return tokens


def _after_braces(body: str, position: int) -> int:
    """Returns the position behind the brace that closes one already open."""
    depth = 1
    for found in _STRING.finditer(body, position):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(body)
