"""Writes down a conversation as a text that a model can summarize: of what is too long, the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fastovms.api.conversation.sealed_text import unseal_summary
from fastovms.api.responses.input.hosted_items import CONFIGURATION, Item, as_functions
from fastovms.api.responses.input.input_items import TEXT_PARTS
from fastovms.api.serving.images import MEDIA_PARTS

CountTokens = Callable[[str], int]

_MAX_SHARE: Final = 4
"""No item takes more than one part in so many of the room."""

_CHARS_PER_TOKEN: Final = 3
"""How many characters of an item are kept for each token that it may have, before they are
counted: encoding more than that costs time."""

_LEFT_OUT: Final = "[...]"
_MIN_CHARS: Final = 4 * len(_LEFT_OUT)
"""An entry of fewer characters, cut, says nothing."""


def transcript(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the newest of the items, in their order, an entry each. The earlier summaries among
    them are told in any case, as they stand for what came before them. Takes time in proportion to
    the tokens that are kept.

    Args:
        items: read, with no reference among them.
    """
    told: dict[int, str] = {}
    left = max_tokens
    order = sorted(range(len(items)), key=lambda place: (not _is_summary(items[place]), -place))
    for place in order:
        entry = "\n\n".join(filter(None, map(_entry, as_functions(items[place]))))
        if not entry:
            continue
        entry = _cut(f"{entry}\n\n", min(left, max_tokens // _MAX_SHARE), count_tokens)
        left -= count_tokens(entry)
        if not entry or left < 0:
            break
        told[place] = entry
    return "".join(told[place] for place in sorted(told)).rstrip()


def newest(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> list[Item]:
    """Returns the newest messages that are not the model's, and those of the system before others,
    with no more tokens than these. Items that configure the answers are kept too."""
    kept = {place for place, item in enumerate(items) if item["type"] in CONFIGURATION}
    left = max_tokens
    given = [
        place
        for place, item in enumerate(items)
        if item["type"] == "message" and item["role"] != "assistant"
    ]
    for place in sorted(given, key=lambda place: (items[place]["role"] == "user", -place)):
        text = _text(items[place]["content"])
        if len(text) > left * _CHARS_PER_TOKEN * _MAX_SHARE:
            break  # it has more tokens in any case
        left -= count_tokens(text)
        if left < 0:
            break
        kept.add(place)
    return [items[place] for place in sorted(kept)]


def _is_summary(item: Item) -> bool:
    return bool(item["type"] == "compaction")


def _entry(item: Item) -> str:
    """Returns what is written of an item; nothing of a thought."""
    match item["type"]:
        case "message":
            return f"{item['role']}: {_text(item['content'])}"
        case "function_call":
            return f"assistant calls {item['name']}: {item['arguments']}"
        case "custom_tool_call":
            return f"assistant calls {item['name']}: {item['input']}"
        case "function_call_output" | "custom_tool_call_output":
            return f"result: {_text(item['output'])}"
        case "compaction":
            return f"summary of what came before: {unseal_summary(item['encrypted_content'])}"
    return ""


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part[TEXT_PARTS[part["type"]]]
        if part["type"] in TEXT_PARTS
        else f"[{MEDIA_PARTS[part['type']]}]"
        for part in content
    )


def _cut(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the text, or its beginning and its end, with no more tokens than these; nothing where
    they are too few for that."""
    room = max_tokens * _CHARS_PER_TOKEN
    while room > _MIN_CHARS:
        shown = text
        if len(text) > room:
            half = (room - len(_LEFT_OUT)) // 2
            shown = f"{text[:half]}{_LEFT_OUT}{text[-half:]}"
        num_tokens = count_tokens(shown)
        if num_tokens <= max_tokens:
            return shown
        room = min(room, len(shown)) * max_tokens * 7 // (num_tokens * 8)
    return ""
