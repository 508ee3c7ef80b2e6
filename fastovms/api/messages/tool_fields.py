"""Reads the tools that a message may use, and `tool_choice`, in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms.api.conversation.chat_tools import ToolReader, ToolUse, check_number_of_tools
from fastovms.api.conversation.tool_choice import ToolChoice
from fastovms.api.conversation.tool_forms import read_function, read_name
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

_CHOICES: Final = ("auto", "any", "tool", "none")


def read_tools(
    given: Sequence[Mapping[str, Any]] | None, choice: Mapping[str, Any] | None
) -> ToolUse:
    """Reads tools. Those that Anthropic's servers run, or that its models know without a schema,
    are passed over.

    Raises:
        InvalidField: a tool or the choice is malformed, or they do not go together.
    """
    check_number_of_tools(given, "tools")
    reader = ToolReader()
    for position, tool in enumerate(given or ()):
        place, kind = f"tools[{position}]", tool.get("type")
        if kind is not None and not isinstance(kind, str):
            name = f"{place}.type"
            raise InvalidField(f"{name} must be a string, not {show(kind)}", param=name)
        if kind in (None, "custom"):
            reader.add(read_function(_function(tool, place), place, schema="input_schema"), place)
        else:
            reader.skip(kind, place)
    chosen, is_parallel = _choice(
        {"type": "auto"} if choice is None else choice, list(reader.offered)
    )
    return reader.use(chosen, is_parallel=is_parallel)


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns a tool as a function in OpenAI's form."""
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        name = f"{place}.input_schema"
        raise InvalidField(f"{name} must be an object, not {show(schema)}", param=name)
    function = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {**function, "parameters": schema}


def _choice(choice: Mapping[str, Any], offered: Sequence[str]) -> tuple[ToolChoice, bool]:
    """Returns which of the tools may be used, and whether several at once."""
    place, kind = "tool_choice", choice.get("type")
    if kind not in _CHOICES:
        name = f"{place}.type"
        raise InvalidField(
            f"{name} must be one of {', '.join(_CHOICES)}, not {show(kind)}", param=name
        )
    is_single = choice.get("disable_parallel_tool_use")
    if is_single is not None and not isinstance(is_single, bool):
        name = f"{place}.disable_parallel_tool_use"
        raise InvalidField(f"{name} must be true or false, not {show(is_single)}", param=name)
    is_parallel = not is_single
    if kind == "none":
        return ToolChoice([]), is_parallel
    if kind == "auto":
        return ToolChoice(offered), is_parallel
    if not offered:
        raise InvalidField(f"{place} is only allowed with tools", param=place)
    if kind == "any":
        return ToolChoice(offered, is_required=True), is_parallel
    called = read_name(choice, place)
    if called not in offered:
        raise InvalidField(
            f"{place} names {show(called)}, which is not among the tools", param=place
        )
    return ToolChoice([called], is_required=True, is_named=True), is_parallel
