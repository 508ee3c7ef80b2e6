"""Lark rules that name a model's tags, which may be special tokens of its vocabulary or plain text.

A rule cannot tell the two apart by itself: text never spells a special token, and a token that
stands for a text is not matched by it. So three directives, a line each, stand for rules that
differ between vocabularies:

    %tag t "<call>"         t: the tag
                            until_t: anything up to and including the tag
                            without_t: anything without the tag
    %text v t REGEX         v: text of a terminal expression, then the tag
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

_DIRECTIVE = re.compile(
    r'%tag (?P<tag>\w+) (?P<text>".*")|%text (?P<name>\w+) (?P<end>\w+) (?P<body>.*)'
)

FindSpecialToken = Callable[[str], int | None]


def resolve_tags(
    source: str, find_special_token: FindSpecialToken, special_token_ids: Sequence[int]
) -> str:
    """Rules that llguidance understands.

    Args:
        find_special_token: the id of the special token that is written so, if there is one.
        special_token_ids: all of them, ascending.
    """
    texts: dict[str, str] = {}
    token_ids: dict[str, int | None] = {}
    lines = []
    for line in source.splitlines():
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            lines.append(line)
        elif name := match["tag"]:
            texts[name] = match["text"]
            token_ids[name] = find_special_token(json.loads(match["text"]))
            lines += _tag(name, texts[name], token_ids[name], special_token_ids)
        else:
            end = match["end"]
            body = match["body"]
            lines += _text(match["name"], body, end, texts[end], token_ids[end])
    return "\n".join([*lines, r"ANY_TEXT: /(.|\n)*/"])


def _tag(
    name: str, text: str, token_id: int | None, special_token_ids: Sequence[int]
) -> Iterator[str]:
    if token_id is not None:
        yield f"{name}: <[{token_id}]>"
        yield f"until_{name}: <[^{token_id}]>* {name}"
        yield f"without_{name}: <[^{token_id}]>*"
        return
    special = f"(ANY_TEXT <[{_ranges(special_token_ids)}]>)* " if special_token_ids else ""
    yield f"{name}: {text}"
    yield f"until_{name}: {special}lazy_{name}"
    yield f"lazy_{name}[lazy]: ANY_TEXT {text}"
    yield f"without_{name}: {special}ANY_TEXT"


def _text(name: str, body: str, end: str, text: str, token_id: int | None) -> Iterator[str]:
    terminal = name.upper()
    if token_id is not None:
        yield f"{name}: {terminal} {end}"
    else:
        yield f"{name}[lazy]: {terminal} {text}"
    yield f"{terminal}: {body}"


def _ranges(token_ids: Sequence[int]) -> str:
    """`0-10,12` of ascending ids."""
    starts = [token_ids[0], *(b for a, b in pairwise(token_ids) if b != a + 1)]
    ends = [*(a for a, b in pairwise(token_ids) if b != a + 1), token_ids[-1]]
    return ",".join(f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
