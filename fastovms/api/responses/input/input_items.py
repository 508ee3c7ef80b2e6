"""Checks the items of a request, and puts them into the one form that is stored, listed and told to
models.

Clients send back what they were given, often without ids, statuses or annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from fastovms.api.conversation.sealed_text import unseal_summary
from fastovms.api.serving.images import IMAGE_PARTS, read_image_part, unknown_part
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.client_ids import MAX_ID, check_id
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField

Item = dict[str, Any]
NewId = Callable[[str], str]
"""Makes an id that begins with a prefix such as "msg"."""


class ItemRules(NamedTuple):
    """How items are read.

    Attributes:
        takes_images: whether they may bring some.
    """

    dialect: Dialect
    new_id: NewId
    takes_images: bool = False


Read = TypeVar("Read")

IMAGE: Final = "input_image"

ROLES: Final = ("user", "assistant", "system", "developer")
STATUSES: Final = ("in_progress", "completed", "incomplete")
TEXT_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""Types of parts that are text, with the member that holds it."""

_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""The prefixes of ids, by the type of the item."""


@dataclass(slots=True)
class ReadItems:
    """Items that have been read.

    Attributes:
        items: the items, with an `item_reference` where one is still to be put in its place.
        skipped: what was left out, in words for a warning.
    """

    items: list[Item] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_input(given: str | Sequence[Mapping[str, Any]] | None, rules: ItemRules) -> ReadItems:
    """Reads the input of a request.

    Raises:
        InvalidField: it is of a wrong type, or has parts that are not text; or it is empty, where
            the dialect refuses that.
    """
    if given is not None and not given and not rules.dialect.responses.takes_empty_input:
        raise InvalidField("input must not be empty", param="input")
    if given is None:
        return ReadItems()
    if isinstance(given, str):
        return ReadItems([_message({"role": "user", "content": given}, "input", rules)])
    return read_items(given, "input", rules)


def read_items(given: Sequence[Mapping[str, Any]], name: str, rules: ItemRules) -> ReadItems:
    """Reads a list of items.

    Args:
        name: the field, for error messages.

    Raises:
        InvalidField: an item is malformed.
    """
    read = ReadItems()
    for position, item in enumerate(given):
        place = f"{name}[{position}]"
        kind = _kind(item, place)
        reader = _READERS.get(kind)
        if reader is not None:
            read.items.append(reader(item, place, rules))
        elif rules.dialect.responses.skips_unknown_types:
            read.skipped.append(f"{place} of type {kind[:40]}")
        else:
            raise InvalidField(
                f"{place}.type must be one of {', '.join(_READERS)}, not {show(kind)}",
                param=f"{place}.type",
            )
    return read


def distinct(items: Sequence[Item], new_id: NewId, taken: Iterable[str] = ()) -> list[Item]:
    """Returns items with ids of their own, so that lists can be paged: some servers number theirs
    anew in every response, and clients send them back together.

    Args:
        taken: ids that other items have.
    """
    seen = set(taken)
    found = []
    for item in items:
        if item["id"] in seen:
            item = {**item, "id": new_id(_PREFIXES[item["type"]])}
        seen.add(item["id"])
        found.append(item)
    return found


def _kind(item: object, name: str) -> str:
    if not isinstance(item, dict):
        raise InvalidField(f"{name} must be an object, not {show(item)}", param=name)
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item or "id" not in item else "item_reference"
    if not isinstance(kind, str):
        raise InvalidField(f"{name}.type must be a string, not {show(kind)}", param=f"{name}.type")
    return kind


# Items by type


def _message(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    role = item.get("role")
    if role not in ROLES:
        raise InvalidField(
            f"{name}.role must be one of {', '.join(ROLES)}, not {show(role)}", param=f"{name}.role"
        )
    return {
        "id": _id(item, name, "message", rules),
        "type": "message",
        "status": _status(item, name),
        "role": role,
        "content": _content(
            item.get("content"), f"{name}.content", rules, is_output=role == "assistant"
        ),
    }


def _call(item: Mapping[str, Any], name: str, rules: ItemRules, *, kind: str, member: str) -> Item:
    """Reads a call.

    Args:
        member: what the model has written for the tool.
    """
    call_id = item.get("call_id")
    if call_id is None:
        call_id = item.get("id")
    text = _text(item.get(member), f"{name}.{member}")
    read = {
        "id": _id(item, name, kind, rules),
        "type": kind,
        "status": _status(item, name),
        "call_id": _id_of(call_id, f"{name}.call_id"),
        "name": _word(item.get("name"), f"{name}.name"),
        member: text,
    }
    if item.get("namespace") is not None:
        read["namespace"] = _word(item["namespace"], f"{name}.namespace")
    return read


def _call_output(item: Mapping[str, Any], name: str, rules: ItemRules, *, kind: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _content(output, f"{name}.output", rules, is_output=False)
    call_id = item.get("call_id")
    if call_id is not None or rules.dialect.responses.outputs_need_call_ids:
        call_id = _id_of(call_id, f"{name}.call_id")
    return {
        "id": _id(item, name, kind, rules),
        "type": kind,
        "status": _status(item, name),
        "call_id": call_id,
        "output": output,
    }


def _reasoning(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    read: Item = {"id": _id(item, name, "reasoning", rules), "type": "reasoning"}
    for member, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        given = item.get(member)
        texts = [] if given is None else _parts(given, f"{name}.{member}")
        read[member] = [{"type": kind, "text": text} for _, text in texts]
    sealed = item.get("encrypted_content")
    if sealed is not None:
        read["encrypted_content"] = _text(sealed, f"{name}.encrypted_content")
    return read


def _compaction(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    name = f"{name}.encrypted_content"
    sealed = _text(item.get("encrypted_content"), name)
    if not unseal_summary(sealed):
        # Passing it over would silently lose all that came before.
        raise InvalidField(f"{name} is no summary that this server has made", param=name)
    item_id = _id(item, name, "compaction", rules)
    return {"id": item_id, "type": "compaction", "encrypted_content": sealed}


def _item_reference(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    return {"type": "item_reference", "id": _id_of(item.get("id"), f"{name}.id")}


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str, ItemRules], Item]]] = {
    "message": _message,
    "function_call": partial(_call, kind="function_call", member="arguments"),
    "function_call_output": partial(_call_output, kind="function_call_output"),
    "custom_tool_call": partial(_call, kind="custom_tool_call", member="input"),
    "custom_tool_call_output": partial(_call_output, kind="custom_tool_call_output"),
    "reasoning": _reasoning,
    "compaction": _compaction,
    "item_reference": _item_reference,
}


# Members


def _content(
    content: object, name: str, rules: ItemRules, *, is_output: bool
) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if content == [] and not rules.dialect.responses.takes_empty_input:
        raise InvalidField(f"{name} must not be empty", param=name)
    if not is_output:
        return _read_parts(content, name, partial(_input_part, rules=rules))
    texts = _parts(content, name)
    return [
        {"type": "refusal", "refusal": text}
        if kind == "refusal"
        else {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        for kind, text in texts
    ]


def _parts(parts: object, name: str) -> list[tuple[str, str]]:
    """Returns the types and texts of parts."""
    return _read_parts(parts, name, _part)


def _read_parts(parts: object, name: str, read: Callable[[object, str], Read]) -> list[Read]:
    if not isinstance(parts, list):
        raise InvalidField(
            f"{name} must be a string or a list of parts, not {show(parts)}", param=name
        )
    return [read(part, f"{name}[{position}]") for position, part in enumerate(parts)]


def _input_part(part: object, name: str, rules: ItemRules) -> dict[str, Any]:
    takes_images = rules.takes_images
    if not takes_images or not isinstance(part, dict) or part.get("type") not in IMAGE_PARTS:
        return {"type": "input_text", "text": _part(part, name, takes_images=takes_images)[1]}
    source = read_image_part(part, name, rules.dialect)
    return {"type": IMAGE, "detail": source.detail, "image_url": source.url}


def _part(part: object, name: str, *, takes_images: bool = False) -> tuple[str, str]:
    if not isinstance(part, dict):
        raise InvalidField(f"{name} must be an object, not {show(part)}", param=name)
    kind = part.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{name}.type must be a string, not {show(kind)}", param=f"{name}.type")
    member = TEXT_PARTS.get(kind)
    if member is None:
        raise unknown_part(kind, name, takes_images=takes_images)
    return kind, _text(part.get(member), f"{name}.{member}")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidField(f"{name} must be a string, not {show(value)}", param=name)
    return value


def _word(value: object, name: str) -> str:
    """Reads a name."""
    text = _text(value, name)
    if not 0 < len(text) <= MAX_ID:
        raise InvalidField(
            f"{name} must have 1 to {MAX_ID} characters, not {len(text)}", param=name
        )
    return text


def _id_of(value: object, name: str) -> str:
    return check_id(_text(value, name), name)


def _id(item: Mapping[str, Any], name: str, kind: str, rules: ItemRules) -> str:
    """Returns the id that the client gives, or a new one."""
    given = item.get("id")
    return _id_of(given, f"{name}.id") if given else rules.new_id(_PREFIXES[kind])


def _status(item: Mapping[str, Any], name: str) -> str:
    status = item.get("status")
    if status is None:
        return "completed"
    if status not in STATUSES:
        raise InvalidField(
            f"{name}.status must be one of {', '.join(STATUSES)}, not {show(status)}",
            param=f"{name}.status",
        )
    return str(status)
