"""Reads input items of the Responses API, and converts them to chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from fastovms.api.body import one_of, show, typed, wrong
from fastovms.api.chat_messages import (
    ChatMessages,
    ContentPart,
    Message,
    join_parts,
    kept_items,
    seal_history,
    summary_message,
    unseal,
    unseal_summary,
)
from fastovms.api.chat_tools import ToolReader, check_number_of_tools, flat_name
from fastovms.api.client_request import RequestDocument
from fastovms.api.client_tools import ANSWERED, CALLED, ClientTool, check_item, openai_tool
from fastovms.api.dialect import Dialect
from fastovms.api.endpoint import MAX_ID, check_id
from fastovms.api.image_parts import (
    IMAGE_PARTS,
    ImageSource,
    RequestImages,
    UnreadableParts,
    read_image_part,
    unknown_part,
)
from fastovms.errors import InvalidField
from fastovms.text.output import input_arguments
from fastovms.text.template_messages import PlacedMessage

Item = dict[str, Any]

IMAGE: Final = "input_image"


class HostedCall(NamedTuple):
    """How calls of a hosted tool are shown to the model.

    Attributes:
        prefix: the prefix of new item ids.
        function: the function name that the model sees; "" = the item's name.
        arguments: the item's members with the arguments.
        results: the item's members with the result; None = a separate item has the result.
    """

    prefix: str
    function: str
    arguments: tuple[str, ...]
    results: tuple[str, ...] | None = None


class HostedOutput(NamedTuple):
    """A type of item that has the result of a call.

    Attributes:
        prefix: the prefix of new item ids.
        results: the item's members with the result.
    """

    prefix: str
    results: tuple[str, ...]


CALLS: Final[Mapping[str, HostedCall]] = {
    "code_interpreter_call": HostedCall("ci", "code_interpreter", ("code",), ("outputs",)),
    "file_search_call": HostedCall("fs", "file_search", ("queries",), ("results",)),
    "image_generation_call": HostedCall("ig", "image_generation", ("revised_prompt",), ("result",)),
    "mcp_call": HostedCall("mcp", "", ("arguments",), ("output", "error")),
    "program": HostedCall("prog", "program", ("code",)),
    "web_search_call": HostedCall("ws", "web_search", ("action",), ("status",)),
}
OUTPUTS: Final[Mapping[str, HostedOutput]] = {
    "apply_patch_call_output": HostedOutput("apco", ("status", "output")),
    "computer_call_output": HostedOutput("cuo", ("output",)),
    "local_shell_call_output": HostedOutput("lsho", ("output",)),
    "program_output": HostedOutput("po", ("result",)),
    "shell_call_output": HostedOutput("sho", ("output",)),
    "tool_search_output": HostedOutput("tso", ("tools",)),
}
CONFIGURATION: Final = ("additional_tools", "configuration_update")
"""Item types that configure the answer and are not shown to the model."""

REFUSED: Final[Mapping[str, str]] = {
    "compaction_trigger": "compact the conversation with POST /v1/responses/compact",
    "mcp_approval_request": "this server calls no MCP servers; leave the item out",
    "mcp_approval_response": "this server calls no MCP servers; leave the item out",
    "mcp_list_tools": "this server calls no MCP servers; leave the item out",
}
"""Unsupported item types, each with an alternative for the error message."""


def as_functions(item: Item, shells: Mapping[str, Item] | None = None) -> Sequence[Item]:
    """Returns the items that replace a hosted tool's item in the model's input: a function call,
    its output, both, or no item. `shells` has the calls of a local shell by id, because their
    outputs may refer to them by item id."""
    kind = item["type"]
    if kind in CONFIGURATION:
        return ()
    if (output := OUTPUTS.get(kind)) is not None:
        call_id = item.get("call_id")
        called = (shells or {}).get(call_id or "", {}) if kind == "local_shell_call_output" else {}
        return (_answer(item, output.results, called.get("call_id") or call_id),)
    call_id = item.get("call_id") or item.get("id")
    if (tool := CALLED.get(kind)) is not None:
        return (_function_call(call_id, tool.function, tool.arguments(item)),)
    if (call := CALLS.get(kind)) is None:
        return (item,)
    arguments = {name: item[name] for name in call.arguments if item.get(name) is not None}
    given = item.get("arguments") if call.arguments == ("arguments",) else arguments
    function_call = _function_call(call_id, call.function or item["name"], given or {})
    return (
        (function_call,)
        if call.results is None
        else (function_call, _answer(item, call.results, call_id))
    )


def _function_call(call_id: str | None, name: str, arguments: object) -> Item:
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def tool_names(tools: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Iterator[str]:
    """Yields the names by which a model calls tools; tools without a name are skipped."""
    for tool in tools:
        name = (tool.get(tool["type"]) or tool).get("name")
        if tool["type"] == "namespace":
            yield from tool_names(tool["tools"], name)
        elif name:
            yield flat_name(name, namespace)


def _answer(item: Item, members: Sequence[str], call_id: str | None) -> Item:
    answer: Item = {"type": "function_call_output", "call_id": call_id}
    if item["type"] == "tool_search_output":
        found = ", ".join(tool_names(item["tools"])) or "none"
        return {**answer, "output": f"Tools found: {found}"}
    given = {name: item[name] for name in members if item.get(name) is not None}
    if (image := _image(item, given)) is not None:
        return {**answer, "output": [image]}
    value = next(iter(given.values())) if len(given) == 1 else given
    return {**answer, "output": value if isinstance(value, str) else _json(value)}


def _image(item: Item, given: Mapping[str, Any]) -> Item | None:
    """Returns an image from a tool's result as an item; None = the result has no image."""
    match item["type"], given:
        case "computer_call_output", {"output": {**screenshot}}:
            return {"type": IMAGE, "image_url": screenshot.get("image_url")}
        case "image_generation_call", {"result": str(data)}:
            kind = item.get("output_format") or "png"
            return {"type": IMAGE, "image_url": f"data:image/{kind};base64,{data}"}
    return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def model_input(items: Sequence[Item]) -> Sequence[Item]:
    """Returns the items for the prompt. The last automatic compaction replaces all items before it
    by its summary and the messages that it kept."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if item["type"] == "compaction" and (kept := kept_items(item["encrypted_content"])):
            return [*kept.before, item, *kept.after, *items[place + 1 :]]
    return items


def given_documents(
    items: list[Item], num_earlier: int, members: Sequence[str] = ("content", "output")
) -> Iterator[RequestDocument]:
    """Yields the files in items. A file whose text is set becomes a text part, in a copy of its
    item.

    Args:
        items: updated in place.
        num_earlier: the number of items before the request's own input.
    """
    for position, item in enumerate(items):
        for member in members:
            content = item.get(member)
            if not isinstance(content, list):
                continue
            is_new = position == len(items) - 1 and item.get("role") == "user"
            for index, part in enumerate(content):
                if not isinstance(part, dict) or part.get("type") != FILE:
                    continue
                name = f"input[{position - num_earlier}]" if position >= num_earlier else "input"
                place = f"{name}.{member}[{index}]"
                take = partial(_become_text, items, position, member, index)
                yield RequestDocument(place, part, is_new, take)


def _become_text(items: list[Item], position: int, member: str, index: int, text: str) -> None:
    item = items[position]
    parts = [*item[member]]
    parts[index] = {"type": "input_text", "text": text}
    items[position] = {**item, member: parts}


def text_of(
    parts: str | Sequence[Mapping[str, Any]],
    name: str = "input",
    images: RequestImages | None = None,
    unseen: UnreadableParts | None = None,
) -> str:
    """Returns the text of a content for the chat template. Raises InvalidField if the content has
    unsupported media, or too many images.

    Args:
        name: the content's field, for error messages.
        images: receives the images, which are replaced by tags; None = the model does not support
            images.
        unseen: receives unsupported media, which are replaced by notes; None = such media are
            refused.
    """
    if isinstance(parts, str):
        return parts
    read = []
    for position, part in enumerate(parts):
        kind, place = part["type"], f"{name}[{position}]"
        if kind in TEXT_PARTS:
            read.append(ContentPart(part[TEXT_PARTS[kind]]))
        elif kind == IMAGE and images is not None and part.get("image_url"):
            tag = images.add(ImageSource(part["image_url"], f"{place}.image_url"))
            read.append(ContentPart(tag, is_image=True))
        elif unseen is not None:
            read.append(ContentPart(unseen.note(kind, place, part.get("filename"))))
        elif kind == IMAGE and images is not None:
            place = f"{place}.file_id"
            raise InvalidField.about(place, "is not supported: include the data itself")
        else:
            raise unknown_part(kind, place, takes_images=images is not None)
    return join_parts(read)


NewId = Callable[[str], str]
"""Returns a new id with a prefix such as "msg"."""


class ItemRules(NamedTuple):
    """The options for reading items. Clients may send back items without ids, statuses or
    annotations."""

    dialect: Dialect
    new_id: NewId


Read = TypeVar("Read")

FILE: Final = "input_file"

ROLES: Final = ("user", "assistant", "system", "developer")
PHASES: Final = ("commentary", "final_answer")
STATUSES: Final = ("in_progress", "completed", "incomplete")
_CLIENT_STATUSES: Final = (*STATUSES, "failed")
TEXT_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""The types of text parts, with the member that has the text."""

_MAY_BE_NULL: Final = ("output_text", "refusal", "summary_text", "reasoning_text")
"""The types of parts written by models; clients may send them back with null instead of an empty
text."""

_FILE_MEMBERS: Final = ("type", "detail", "file_data", "file_id", "file_url", "filename")


def read_input(given: str | Sequence[Mapping[str, Any]] | None, rules: ItemRules) -> list[Item]:
    """Returns the checked items of a request's input. Items of type `item_reference` are not
    resolved. Raises InvalidField if the input has the wrong type, an item is malformed or of an
    unsupported type, or the input is empty and the dialect forbids that."""
    if given is not None and not given and not rules.dialect.responses.takes_empty_input:
        raise InvalidField.about("input", "must not be empty")
    if given is None:
        return []
    if isinstance(given, str):
        return [_message({"role": "user", "content": given}, "input", rules)]
    return read_items(given, "input", rules)


def read_items(given: Sequence[Mapping[str, Any]], name: str, rules: ItemRules) -> list[Item]:
    """Returns a list of checked items. Raises InvalidField if an item is malformed or of an
    unsupported type. `name` is the field, for error messages."""
    read: list[Item] = []
    open_calls: dict[str, None] = {}
    for position, item in enumerate(given):
        if len(open_calls) == 1 and _lacks_call_id(item):
            item = {**item, "call_id": next(iter(open_calls))}
        found = _item(item, f"{name}[{position}]", rules)
        read.append(found)
        if found["type"] in _CALL_TYPES:
            open_calls[found["call_id"]] = None
        elif "call_id" in found:
            open_calls.pop(found["call_id"], None)
    return read


_CALL_TYPES: Final = ("function_call", "custom_tool_call")


def _lacks_call_id(item: object) -> bool:
    """Returns whether an item is a call's output without `call_id`. If it follows a single call, it
    is that call's output."""
    return (
        isinstance(item, dict)
        and item.get("type") in [f"{kind}_output" for kind in _CALL_TYPES]
        and item.get("call_id") is None
    )


def _item(item: Mapping[str, Any], place: str, rules: ItemRules) -> Item:
    kind, name = _kind(item, place), f"{place}.type"
    if kind in REFUSED:
        raise InvalidField.about(name, f"{show(kind)} is not supported: {REFUSED[kind]}")
    read = _TYPES[one_of(kind, _TYPES, name)].read(item, place, rules)
    if kind in _HOSTED or kind in CONFIGURATION:
        encoded(read, place)  # some members are any JSON value, which must be encodable
    return read


def encoded(value: object, name: str) -> bytes:
    """Returns the JSON of a client's value. Raises InvalidField if the value cannot be encoded."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise InvalidField.about(name, "has an integer of more than 64 bits") from None


def distinct(items: Sequence[Item], new_id: NewId, taken: Iterable[str] = ()) -> list[Item]:
    """Returns the items with unique ids, so that lists can be paged. Some servers use the same item
    ids in every response, and clients send such items together.

    Args:
        taken: ids that are already used.
    """
    seen = set(taken)
    found = []
    for item in items:
        if item["id"] in seen:
            item = {**item, "id": new_id(_TYPES[item["type"]].prefix)}
        seen.add(item["id"])
        found.append(item)
    return found


def _kind(item: object, name: str) -> str:
    item = typed(item, dict, name)
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item or "id" not in item else "item_reference"
    return typed(kind, str, f"{name}.type")


def _message(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    role = one_of(item.get("role"), ROLES, f"{name}.role")
    phase = item.get("phase")
    if phase is not None:
        one_of(phase, PHASES, f"{name}.phase")
    read = {
        "id": _id(item, name, "message", rules),
        "type": "message",
        "status": _status(item, name),
        "role": role,
        "content": _content(
            item.get("content"), f"{name}.content", rules, is_output=role == "assistant"
        ),
    }
    if phase is not None and role == "assistant":
        read["phase"] = phase
    return read


def _call(item: Mapping[str, Any], name: str, rules: ItemRules, *, kind: str, member: str) -> Item:
    """Reads a tool call. `member` is the member with the arguments or the input."""
    call_id = item.get("call_id")
    if call_id is None:
        call_id = item.get("id")
    text = typed(item.get(member), str, f"{name}.{member}")
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
        texts = [] if given is None else _read_parts(given, f"{name}.{member}", _part)
        read[member] = [{"type": kind, "text": text} for _, text in texts]
    sealed = item.get("encrypted_content")
    if sealed is not None:
        read["encrypted_content"] = typed(sealed, str, f"{name}.encrypted_content")
    return read


def _compaction(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    name = f"{name}.encrypted_content"
    sealed = typed(item.get("encrypted_content"), str, name)
    if not unseal_summary(sealed):
        # Ignoring it would silently drop all earlier items.
        raise InvalidField.about(name, "is not a summary that this server has written")
    if kept := kept_items(sealed):
        read = [read_items(items, name, rules) for items in kept]
        for message in (*read[0], *read[1]):
            if message["type"] not in ("message", *CONFIGURATION):
                raise wrong(name, "a summary with messages", message["type"])
        sealed = seal_history(unseal_summary(sealed), *read)
    item_id = _id(item, name, "compaction", rules)
    return {"id": item_id, "type": "compaction", "encrypted_content": sealed}


def _item_reference(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    return {"type": "item_reference", "id": _id_of(item.get("id"), f"{name}.id")}


def _hosted(item: Mapping[str, Any], name: str, rules: ItemRules, *, kind: str) -> Item:
    """Reads the call, or the output, of a tool that is not a function. The item is stored
    unchanged, and shown to the model as a function call or its output."""
    read = {**item, "id": _id(item, name, kind, rules), "type": kind}
    call_id = item.get("call_id")
    if call_id is None and kind.startswith("local_shell"):
        call_id = item.get("id")  # outputs have the id of their call
    if call_id is not None or (kind in OUTPUTS and kind != "tool_search_output"):
        read["call_id"] = _id_of(call_id, f"{name}.call_id")
    if kind == "mcp_call":
        _word(item.get("name"), f"{name}.name")
    if kind == "tool_search_output":
        _check_tools(item, name, rules)
    if kind in CALLED or kind in ANSWERED:
        check_item(item, name)
        status = item.get("status")
        read["status"] = one_of(status or "completed", _CLIENT_STATUSES, f"{name}.status")
    return read


def _additional_tools(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    role = item.get("role", "developer")
    if role != "developer":
        raise wrong(f"{name}.role", '"developer"', role)
    _check_tools(item, name, rules)
    item_id = _id(item, name, "additional_tools", rules)
    return {"id": item_id, "type": "additional_tools", "role": role, "tools": item["tools"]}


def _check_tools(item: Mapping[str, Any], name: str, rules: ItemRules) -> None:
    """Raises InvalidField if a tool in an item that adds tools is malformed."""
    tools, name = item.get("tools"), f"{name}.tools"
    tools = typed(tools, list, name)
    check_number_of_tools(tools, name)
    skips_others = rules.dialect.responses.skips_unknown_types
    reader = ToolReader(
        flat=True, has_namespaces=True, skips_others=skips_others, read_other=openai_tool
    )
    for position, tool in enumerate(tools):
        reader.read(tool, f"{name}[{position}]")


def _configuration_update(item: Mapping[str, Any], name: str, rules: ItemRules) -> Item:
    read: Item = {"id": _id(item, name, "configuration_update", rules)}
    read["type"] = "configuration_update"
    for member, key in (("reasoning", "effort"), ("text", "format")):
        given, place = item.get(member), f"{name}.{member}"
        if given is None:
            continue
        given = typed(given, dict, place)
        value, place = given.get(key), f"{place}.{key}"
        if key == "effort" and value is not None:
            one_of(value, rules.dialect.responses.efforts, place)
        if key == "format" and not isinstance(value, dict):
            raise wrong(place, "an object", value)
        read[member] = {key: value}
    return read


class _Type(NamedTuple):
    """How items of one type are read.

    Attributes:
        prefix: the prefix of the items' ids.
    """

    prefix: str
    read: Callable[[Mapping[str, Any], str, ItemRules], Item]


_HOSTED: Final[Mapping[str, HostedCall | ClientTool | HostedOutput]] = {
    **CALLS,
    **CALLED,
    **OUTPUTS,
}
_TYPES: Final[Mapping[str, _Type]] = {
    "message": _Type("msg", _message),
    "function_call": _Type("fc", partial(_call, kind="function_call", member="arguments")),
    "function_call_output": _Type("fco", partial(_call_output, kind="function_call_output")),
    "custom_tool_call": _Type("ctc", partial(_call, kind="custom_tool_call", member="input")),
    "custom_tool_call_output": _Type("ctco", partial(_call_output, kind="custom_tool_call_output")),
    "reasoning": _Type("rs", _reasoning),
    "compaction": _Type("cmp", _compaction),
    "item_reference": _Type("", _item_reference),
    "additional_tools": _Type("at", _additional_tools),
    "configuration_update": _Type("cu", _configuration_update),
    **{kind: _Type(row.prefix, partial(_hosted, kind=kind)) for kind, row in _HOSTED.items()},
}
"""All supported item types."""


def _content(
    content: object, name: str, rules: ItemRules, *, is_output: bool
) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if content == [] and not rules.dialect.responses.takes_empty_input:
        raise InvalidField.about(name, "must not be empty")
    if not is_output:
        return _read_parts(content, name, partial(_input_part, rules=rules))
    texts = _read_parts(content, name, _part)
    return [
        {"type": "refusal", "refusal": text}
        if kind == "refusal"
        else {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        for kind, text in texts
    ]


def _read_parts(parts: object, name: str, read: Callable[[object, str], Read]) -> list[Read]:
    if not isinstance(parts, list):
        raise wrong(name, "a string or a list of parts", parts)
    return [read(part, f"{name}[{position}]") for position, part in enumerate(parts)]


def _input_part(part: object, name: str, rules: ItemRules) -> dict[str, Any]:
    """Reads a part of any type. Whether the model supports its media is checked later."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in (*IMAGE_PARTS, FILE):
        return {"type": "input_text", "text": _part(part, name)[1]}
    if kind == FILE:
        given = {key: part[key] for key in _FILE_MEMBERS if part.get(key) is not None}
        return {key: typed(value, str, f"{name}.{key}") for key, value in given.items()}
    if part.get("image_url") is None and isinstance(part.get("file_id"), str):
        return {"type": IMAGE, "detail": "auto", "file_id": part["file_id"]}
    source = read_image_part(part, name, rules.dialect)
    return {"type": IMAGE, "detail": source.detail, "image_url": source.url}


def _part(part: object, name: str) -> tuple[str, str]:
    """Returns the type and the text of a part."""
    part = typed(part, dict, name)
    kind = typed(part.get("type"), str, f"{name}.type")
    member = TEXT_PARTS.get(kind)
    if member is None:
        raise unknown_part(kind, name, takes_images=False)
    text = part.get(member)
    if text is None and kind in _MAY_BE_NULL:
        return kind, ""
    return kind, typed(text, str, f"{name}.{member}")


def _word(value: object, name: str) -> str:
    """Returns a name. Raises InvalidField if its length is not allowed."""
    text = typed(value, str, name)
    if not 0 < len(text) <= MAX_ID:
        raise InvalidField.about(name, f"must have 1 to {MAX_ID} characters, not {len(text)}")
    return text


def _id_of(value: object, name: str) -> str:
    return check_id(typed(value, str, name), name)


def _id(item: Mapping[str, Any], name: str, kind: str, rules: ItemRules) -> str:
    given = item.get("id")
    return _id_of(given, f"{name}.id") if given else rules.new_id(_TYPES[kind].prefix)


def _status(item: Mapping[str, Any], name: str) -> str:
    status = item.get("status")
    return "completed" if status is None else one_of(status, STATUSES, f"{name}.status")


def to_messages(
    items: Sequence[Item],
    instructions: str | None = None,
    *,
    num_earlier: int = 0,
    images: RequestImages | None = None,
) -> ChatMessages:
    """Returns the items as chat messages: text, reasoning and tool calls of one turn become one
    message. Unsupported media are replaced by a note, except in the user's last message, where they
    are refused. Raises InvalidField for refused media, or if there are too many images.

    Args:
        items: checked items without references.
        instructions: the system message at the beginning.
        num_earlier: the number of items before the request's own input.
        images: receives the images; None = the model does not support images.
    """
    unseen = UnreadableParts()
    messages: list[Message] = []
    if instructions:
        message = {"role": "system", "content": instructions}
        messages.append(PlacedMessage(message, "instructions"))
    turn = _Turn()
    is_compacted = False
    shells = {item["id"]: item for item in items if item["type"] == "local_shell_call"}
    functions = (
        (position, function)
        for position, item in enumerate(items, -num_earlier)
        for function in as_functions(item, shells)
    )
    for position, item in functions:
        name = f"input[{position}]" if position >= 0 else "input"
        if not turn.takes(item):
            messages += turn.messages()
            turn = _Turn()
        if turn.takes(item):
            turn.add(item, name)
            is_compacted = False
            continue
        is_new = item is items[-1] and item.get("role") == "user"
        message = _other_message(item, name, images, None if is_new else unseen)
        is_compacted = item["type"] == "compaction" or (is_compacted and message["role"] == "user")
        if is_compacted:
            message = _joined(messages, message)
        messages.append(PlacedMessage(message, name))
    messages += turn.messages()
    return ChatMessages(messages, () if images is None else images.sources, unseen.warnings)


@dataclass(slots=True)
class _Turn:
    """One turn of the model: optional reasoning, then one message with text and tool calls."""

    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    place: str = ""

    def takes(self, item: Item) -> bool:
        match item["type"]:
            case "reasoning":
                return self.content is None and not self.calls
            case "message":
                return item["role"] == "assistant" and self.content is None
            case kind:
                return kind in ("function_call", "custom_tool_call")

    def add(self, item: Item, place: str) -> None:
        self.place = self.place or place
        match item["type"]:
            case "reasoning":
                self.reasoning.append(_reasoning_text(item))
            case "message":
                self.content = text_of(item["content"])
            case "function_call":
                self._add_call(item, item["arguments"] or "{}")
            case "custom_tool_call":
                self._add_call(item, input_arguments(item["input"]))

    def _add_call(self, item: Item, arguments: str) -> None:
        name = flat_name(item["name"], item.get("namespace"))
        function = {"name": name, "arguments": arguments}
        self.calls.append({"type": "function", "id": item["call_id"], "function": function})

    def messages(self) -> list[Message]:
        reasoning = "\n".join(filter(None, self.reasoning))
        if not (reasoning or self.calls or self.content is not None):
            return []
        message: Message = {"role": "assistant", "content": self.content or ""}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return [PlacedMessage(message, self.place)]


def _joined(messages: list[Message], message: Message) -> Message:
    """Removes the user messages at the end of `messages`, and returns them joined with `message`.
    Consecutive user messages, which a compaction may leave, are rejected by many templates."""
    texts = [message["content"]]
    while messages and messages[-1]["role"] == "user":
        texts.insert(0, messages.pop()["content"])
    return {"role": "user", "content": "\n\n".join(texts)}


def _reasoning_text(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or []
    return text_of(parts) or unseal(item.get("encrypted_content") or "")


def _other_message(
    item: Item, name: str, images: RequestImages | None, unseen: UnreadableParts | None
) -> Message:
    if item["type"] == "compaction":
        return {"role": "user", "content": summary_message(item["encrypted_content"])}
    if item["type"] == "message":
        content = text_of(item["content"], f"{name}.content", images, unseen)
        return {"role": item["role"], "content": content}
    content = text_of(item["output"], f"{name}.output", images, unseen)
    message = {"role": "tool", "content": content}
    if item["call_id"] is not None:
        message["tool_call_id"] = item["call_id"]
    return message
