"""Reads rules of GBNF, llama.cpp's notation of grammars, which XGrammar's EBNF is like."""

from __future__ import annotations

import re
from typing import Final

from llguidance.gbnf_to_lark import gbnf_to_lark

_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_ASCII: Final = 0x80


def lark_rules(source: str) -> str:
    """Returns rules of Lark for rules of GBNF or EBNF, which define with `::=`; others are Lark
    already.

    Raises:
        ValueError: an escape in them is of no character.
        Exception: they are malformed; the reader of llguidance raises plain ones.
    """
    if "::=" not in source:
        return source
    return gbnf_to_lark(_ESCAPE.sub(_character, source))


def _character(match: re.Match[str]) -> str:
    """Returns the character that an escape of Unicode stands for, which llguidance's reader writes
    as one that Lark does not know."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    try:
        chr(code).encode()
    except (ValueError, OverflowError):
        raise ValueError(f"{match[0]} is no character") from None
    return chr(code) if code >= _ASCII else f"\\x{code:02x}"
