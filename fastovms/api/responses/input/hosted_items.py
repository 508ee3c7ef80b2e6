"""Tells a model of calls that no function of the request stands for: those of tools that OpenAI
runs, such as a web search, or that its models know without a schema, such as a shell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastovms.api.conversation.tool_targets import flat_name

Item = dict[str, Any]

IMAGE: Final = "input_image"


class HostedCall(NamedTuple):
    """A type of call.

    Attributes:
        prefix: the prefix of new ids.
        function: the name that the model is told; empty = the item's own.
        arguments: the members that say what was asked.
        results: the members with the answer; None = an item of its own has it.
    """

    prefix: str
    function: str
    arguments: tuple[str, ...]
    results: tuple[str, ...] | None = None


class HostedOutput(NamedTuple):
    """A type of item that answers a call.

    Attributes:
        prefix: the prefix of new ids.
        results: the members with the answer.
    """

    prefix: str
    results: tuple[str, ...]


CALLS: Final[Mapping[str, HostedCall]] = {
    "apply_patch_call": HostedCall("apc", "apply_patch", ("operation",)),
    "code_interpreter_call": HostedCall("ci", "code_interpreter", ("code",), ("outputs",)),
    "computer_call": HostedCall("cu", "computer", ("action", "actions")),
    "file_search_call": HostedCall("fs", "file_search", ("queries",), ("results",)),
    "image_generation_call": HostedCall("ig", "image_generation", ("revised_prompt",), ("result",)),
    "local_shell_call": HostedCall("lsh", "local_shell", ("action",)),
    "mcp_call": HostedCall("mcp", "", ("arguments",), ("output", "error")),
    "program": HostedCall("prog", "program", ("code",)),
    "shell_call": HostedCall("sh", "shell", ("action",)),
    "tool_search_call": HostedCall("tsc", "tool_search", ("arguments",)),
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
"""Types of items that say how to answer, and nothing to the model."""

REFUSED: Final[Mapping[str, str]] = {
    "compaction_trigger": "compact the conversation with POST /v1/responses/compact",
    "mcp_approval_request": "this server calls no MCP servers; leave the item out",
    "mcp_approval_response": "this server calls no MCP servers; leave the item out",
    "mcp_list_tools": "this server calls no MCP servers; leave the item out",
}
"""Types of items that ask for what this server does not do, with what to do instead."""


def as_functions(item: Item) -> Sequence[Item]:
    """Returns the items that stand for one where a model is told of it: a call of a function, what
    it has answered, both, or none."""
    kind = item["type"]
    if kind in CONFIGURATION:
        return ()
    call, output = CALLS.get(kind), OUTPUTS.get(kind)
    if output is not None:
        return (_answer(item, output.results, item.get("call_id")),)
    if call is None:
        return (item,)
    call_id = item.get("call_id") or item["id"]
    told = {
        "type": "function_call",
        "call_id": call_id,
        "name": call.function or item["name"],
        "arguments": _arguments(item, call.arguments),
    }
    return (told,) if call.results is None else (told, _answer(item, call.results, call_id))


def tool_names(tools: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Iterator[str]:
    """Yields the names by which a model calls tools; those of types without a name have none."""
    for tool in tools:
        name = (tool.get(tool["type"]) or tool).get("name")
        if tool["type"] == "namespace":
            yield from tool_names(tool["tools"], name)
        elif name:
            yield flat_name(name, namespace)


def _arguments(item: Item, members: Sequence[str]) -> str:
    if members == ("arguments",):
        given = item.get("arguments")
        return given if isinstance(given, str) else _json(given or {})
    return _json({name: item[name] for name in members if item.get(name) is not None})


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
    """Returns the image that a tool has answered; None = there is none."""
    match item["type"], given:
        case "computer_call_output", {"output": {**screenshot}}:
            return {"type": IMAGE, "image_url": screenshot.get("image_url")}
        case "image_generation_call", {"result": str(data)}:
            kind = item.get("output_format") or "png"
            return {"type": IMAGE, "image_url": f"data:image/{kind};base64,{data}"}
    return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
