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
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

_DIRECTIVE = re.compile(
    r'%tag (?P<tag>\w+) (?P<text>".*")|%text (?P<name>\w+) (?P<end>\w+) (?P<body>.*)'
)


def resolve_tags(
    source: str, special_tokens: Mapping[str, int], end_token_ids: Collection[int]
) -> str:
    """Rules that llguidance understands.

    Args:
        special_tokens: ids by text, without those that end a text.
        end_token_ids: of the tokens that do. None stands before a tag that must come.
    """
    special_token_ids = sorted(special_tokens.values())
    texts: dict[str, str] = {}
    token_ids: dict[str, int | None] = {}
    lines = []
    for line in source.splitlines():
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            lines.append(line)
        elif name := match["tag"]:
            texts[name] = match["text"]
            token_ids[name] = token_id = special_tokens.get(json.loads(match["text"]))
            if token_id is None:
                lines += _text_tag(name, texts[name], special_token_ids)
            else:
                lines += _token_tag(name, token_id, end_token_ids)
        else:
            end = match["end"]
            body = match["body"]
            lines += _text(match["name"], body, end, texts[end], token_ids[end])
    return "\n".join([*lines, r"ANY_TEXT: /(.|\n)*/"])


def _token_tag(name: str, token_id: int, end_token_ids: Collection[int]) -> Iterator[str]:
    others = f"<[^{_ranges(sorted({token_id, *end_token_ids}))}]>*"
    yield f"{name}: <[{token_id}]>"
    yield f"until_{name}: {others} {name}"
    yield f"without_{name}: {others}"


def _text_tag(name: str, text: str, special_token_ids: Sequence[int]) -> Iterator[str]:
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
