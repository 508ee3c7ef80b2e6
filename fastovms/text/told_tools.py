"""Tells tools, calls and results in the words of messages, for templates that know none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms.text.tools import CallChoice, ToolFormat
from fastovms.text.tools.written_call import written_call

Message = Mapping[str, Any]

_SYSTEM: Final = ("system", "developer")
_ASKED: Final = """\
You can call these functions. Each line is one, as JSON with the schema of its parameters:
{functions}

To call one, write this and nothing else, with the function's name and its arguments:
{example}
{number} {need} Never make up what a call returns: the next message tells you."""
_SEVERAL: Final = "To call several, write one such call after the other."
_ONE: Final = "Make one call at most."
_NEEDED: Final = "Answer with a call now."
_NOT_NEEDED: Final = "If no function is needed, answer in your own words."
_RESULT: Final = "Result of the call of {name}:\n{content}"
_UNKNOWN: Final = "a function"


def tell_tools(
    messages: Sequence[Message],
    functions: Sequence[Message],
    tool_format: ToolFormat,
    choice: CallChoice,
    *,
    has_system_turn: bool,
) -> list[dict[str, Any]]:
    """Returns messages of text alone: the tools are told in the system's, calls stand in the
    model's as it writes them, and what they have returned in the user's.

    Args:
        messages: in OpenAI's form.
        functions: what may be called, in OpenAI's form; none = nothing is told of calling.
        tool_format: how the model is to write calls.
        has_system_turn: whether the template takes system messages; else the user's first one
            begins with what is told of the tools.
    """
    told = _without_calls(messages, tool_format)
    if not functions:
        return told
    text = _instruction(functions, tool_format, choice)
    roles = _SYSTEM if has_system_turn else ("user",)
    first = next((i for i, message in enumerate(told) if message.get("role") in roles), None)
    if first is None:
        return [{"role": roles[0], "content": text}, *told]
    content = _text(told[first].get("content"))
    parts = (content, text) if has_system_turn else (text, content)
    told[first] = {**told[first], "content": "\n\n".join(filter(None, parts))}
    return told


def _instruction(functions: Sequence[Message], tool_format: ToolFormat, choice: CallChoice) -> str:
    members = ("name", "description", "parameters")
    lines = []
    for tool in functions:
        function = tool.get("function", tool)
        shown = {key: function[key] for key in members if function.get(key) is not None}
        lines.append(json.dumps(shown, ensure_ascii=False))
    return _ASKED.format(
        functions="\n".join(lines),
        example=written_call(tool_format, "name_of_function", {"name_of_argument": "value"}),
        number=_SEVERAL if choice.parallel else _ONE,
        need=_NEEDED if choice.required else _NOT_NEEDED,
    )


def _without_calls(messages: Sequence[Message], tool_format: ToolFormat) -> list[dict[str, Any]]:
    """Returns messages without roles and members that only templates with tools know. What the user
    says behind results is of one message with them, since templates want turns to alternate."""
    told: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    follows_result = False
    for message in messages:
        turn = {key: value for key, value in message.items() if key not in _OF_TOOLS}
        calls = message.get("tool_calls") or ()
        is_result = message.get("role") in _RESULTS
        if calls:
            written = []
            for call in calls:
                function = call.get("function") or {}
                names[str(call.get("id"))] = function.get("name", _UNKNOWN)
                written.append(_written(function, tool_format))
            turn["content"] = "\n".join(filter(None, [_text(message.get("content")), *written]))
        elif is_result:
            name = message.get("name") or names.get(str(message.get("tool_call_id")), _UNKNOWN)
            content = _text(message.get("content"))
            turn = {"role": "user", "content": _RESULT.format(name=name, content=content)}
        if follows_result and turn.get("role") == "user":
            told[-1]["content"] += "\n\n" + _text(turn.get("content"))
        else:
            told.append(turn)
        follows_result = turn.get("role") == "user" and (is_result or follows_result)
    return told


_OF_TOOLS: Final = ("tool_calls", "tool_call_id", "function_call")
_RESULTS: Final = ("tool", "function")


def _written(function: Message, tool_format: ToolFormat) -> str:
    name, arguments = function.get("name", ""), function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    return written_call(tool_format, name, arguments if isinstance(arguments, dict) else {})


def _text(content: object) -> str:
    """Returns the text of a content: that of its parts, a line each."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
