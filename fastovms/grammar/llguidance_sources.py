"""Writes grammars in the forms that llguidance reads: its JSON, and its Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher

from fastovms.grammar.json_schema import usable_schema
from fastovms.params import GrammarKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON_OPTIONS: JsonCompileOptions = {"whitespace_flexible": False, "coerce_one_of": True}
"""Options of JSON: it is compact, since free white space would let a small model write spaces for
ever."""


def framed(rules: str, answer: str) -> str:
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


WRITERS: Final[Mapping[GrammarKind, Callable[[str], str]]] = {
    GrammarKind.JSON_SCHEMA: _json_schema,
    GrammarKind.JSON_OBJECT: _json_object,
    GrammarKind.REGEX: _regex,
    GrammarKind.CHOICE: _choice,
    GrammarKind.CALLS: str,  # the tree says all
}
"""Writes each kind of grammar that needs no tokenizer. A faulty source raises a ValueError, or what
llguidance raises."""
