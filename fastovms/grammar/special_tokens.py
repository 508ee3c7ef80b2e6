"""Renames a tokenizer's special tokens so that no text can name one.

llguidance spells text that must follow as the tokenizer would, and that makes one token of what
names a special one: a grammar in which `<tool_call>` is a text would end there. So it gets a
tokenizer whose special tokens have names that nobody writes. Grammars refer to them by their ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from fastovms.grammar.lark.lark_writer import OPAQUE

_MARK = "\ue000"
"""The character in these names: one of Unicode's private use."""

_LARK_PIECES = re.compile(rf"{OPAQUE}|(?P<name><[^<>\s]+>)")


class NamelessTokens(NamedTuple):
    """A tokenizer whose special tokens no text names.

    Attributes:
        tokenizer_json: the tokenizer, in which special tokens have other names.
        special_tokens: ids by the names that they had.
    """

    tokenizer_json: str
    special_tokens: dict[str, int]


def without_names(tokenizer_json: str) -> NamelessTokens:
    """Returns such a tokenizer.

    Raises:
        ValueError: it is no tokenizer.json.
    """
    try:
        tokenizer = orjson.loads(tokenizer_json)
        special_tokens = _hide(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it describes no tokenizer: {error!r}") from error
    return NamelessTokens(orjson.dumps(tokenizer).decode(), special_tokens)


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
        for entry in vocab:  # a token and its probability
            if entry[0] in special_tokens:
                entry[0] = _hidden(entry[0])
    if model.get("unk_token") in special_tokens:
        model["unk_token"] = _hidden(model["unk_token"])
    return special_tokens


def with_token_ids(lark: str, names: Mapping[str, int]) -> str:
    """Returns Lark rules that refer to special tokens by their ids, not by these names."""

    def by_id(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<[{names[name]}]>" if name in names else match[0]

    return _LARK_PIECES.sub(by_id, lark)


def _hidden(name: str) -> str:
    # Whether it is special may be told by its first and its last character.
    return name[:1] + _MARK + name[1:]
