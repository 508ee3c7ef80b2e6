"""Writes an expression of all names but some, of which others are told apart by their letters: the
expressions of JSON Schema have nothing that excludes."""

from __future__ import annotations

import re
from collections.abc import Iterable

_Tree = dict[str, "_Tree"]
_END = ""
_ANYTHING = r"(.|\n|\r)*"


def other_names(names: Iterable[str]) -> str:
    """Returns an expression that every text but these matches, as a whole."""
    root: _Tree = {}
    for name in names:
        node = root
        for letter in name:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return f"^{_others(root)}$"


def _others(node: _Tree) -> str:
    """Returns an expression of what follows to make another text than those of the tree."""
    letters = [letter for letter in node if letter != _END]
    choices = [f"{re.escape(letter)}{_others(node[letter])}" for letter in letters]
    barred = "".join(map(re.escape, letters))
    choices.append(f"[^{barred}]{_ANYTHING}" if letters else f"(.|\\n|\\r){_ANYTHING}")
    return f"({'|'.join(choices)}){'' if _END in node else '?'}"
