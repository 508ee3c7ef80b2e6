"""Special tokens that no text names.

llguidance spells text that must follow as the tokenizer would, and that makes one token of what
names a special one: a grammar in which `<tool_call>` is a text would end there. So it gets a
tokenizer whose special tokens have names that nobody writes. Grammars refer to them by their ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

_MARK = "\ue000"
"""Of Unicode's private use."""

_LARK_PIECES = re.compile(
    r"""
    "(?:[^"\\\n]|\\.)*"          # a text, in JSON too
    | /(?![/*])(?:[^/\\\n]|\\.)+/  # a regular expression
    | //[^\n]*                   # a comment
    | (?P<name><[^<>\s]+>)
    """,
    re.VERBOSE,
)


def without_names(tokenizer_json: str, names: Mapping[str, int]) -> str:
    """The tokenizer.json in which the tokens of these names have others."""
    tokenizer: dict[str, Any] = orjson.loads(tokenizer_json)
    for token in tokenizer.get("added_tokens") or ():
        if token["content"] in names:
            token["content"] = _hidden(token["content"])
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {_hidden(t) if t in names else t: id_ for t, id_ in vocab.items()}
    else:  # with their probabilities
        model["vocab"] = [[_hidden(t) if t in names else t, p] for t, p in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = _hidden(model["unk_token"])
    return orjson.dumps(tokenizer).decode()


def with_token_ids(lark: str, names: Mapping[str, int]) -> str:
    """Lark rules that refer to special tokens by their ids, not by these names."""

    def by_id(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<[{names[name]}]>" if name in names else match[0]

    return _LARK_PIECES.sub(by_id, lark)


def _hidden(name: str) -> str:
    # Whether it is special may be told by its first and its last character.
    return name[:1] + _MARK + name[1:]
