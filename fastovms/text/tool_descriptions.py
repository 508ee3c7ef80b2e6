"""Describes tools as text, for templates without support for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms import grammar_tree as tree
from fastovms.grammar_tree import Node
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.template_messages import PlacedMessage, place_of
from fastovms.text.tools.tool_format import ToolFormat

Message = Mapping[str, Any]

_SYSTEM: Final = ("system", "developer")
_TOOLS_PROMPT: Final = """\
You can call these functions. Each line is one, as JSON with the schema of its parameters:
{functions}

To call one, write this and nothing else, with the function's name and its arguments:
{example}
{number} {need} Never make up what a call returns: the next message tells you."""
_SEVERAL: Final = "To call several, write one such call after the other."
_ONE: Final = "Make one call at most."
_NEEDED: Final = "Answer with a call now."
_NOT_NEEDED: Final = "If no function is needed, answer in your own words."


def describe_tools(
    messages: Sequence[Message],
    functions: Sequence[Message],
    tool_format: ToolFormat,
    choice: CallChoice,
    *,
    has_system_turn: bool,
) -> list[dict[str, Any]]:
    """Returns the messages with a description of the tools added to the system message, or to the
    first user message.

    Args:
        messages: in OpenAI's format.
        functions: the allowed functions in OpenAI's format; empty = messages are unchanged.
        tool_format: the tool-call format for the model.
        choice: the allowed calls.
        has_system_turn: whether the template shows system messages; otherwise the first user
            message begins with the description.
    """
    described: list[dict[str, Any]] = [
        PlacedMessage(m, place_of(m, index)) for index, m in enumerate(messages)
    ]
    if not functions:
        return described
    text = _instruction(functions, tool_format, choice)
    roles = _SYSTEM if has_system_turn else ("user",)
    first = next((i for i, message in enumerate(described) if message.get("role") in roles), None)
    if first is None:
        return [{"role": roles[0], "content": text}, *described]
    content = _text(described[first].get("content"))
    parts = (content, text) if has_system_turn else (text, content)
    described[first]["content"] = "\n\n".join(filter(None, parts))
    return described


def _instruction(functions: Sequence[Message], tool_format: ToolFormat, choice: CallChoice) -> str:
    members = ("name", "description", "parameters")
    lines = []
    for tool in functions:
        function = tool.get("function", tool)
        shown = {key: function[key] for key in members if function.get(key) is not None}
        lines.append(json.dumps(shown, ensure_ascii=False))
    return _TOOLS_PROMPT.format(
        functions="\n".join(lines),
        example=written_call(tool_format, "name_of_function", {"name_of_argument": "value"}),
        number=_SEVERAL if choice.parallel else _ONE,
        need=_NEEDED if choice.required else _NOT_NEEDED,
    )


def _text(content: object) -> str:
    """Returns a content as a string; its text parts are on separate lines."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def written_call(tool_format: ToolFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """Returns the text of a call in a tool-call format, including its markup."""
    parameters = {
        "type": "object",
        "properties": {key: {"const": value} for key, value in arguments.items()},
        "required": list(arguments),
    }
    choice = CallChoice([Tool(name, parameters)], required=True, parallel=False)
    return _node_text(tool_format.grammar(choice))


def _node_text(node: Node) -> str:
    """Returns a text that matches a grammar: the first of several choices, and "" for optional
    parts."""
    match node:
        case tree.Literal(text) | tree.Tag(text) | tree.Until(text):
            return text
        case tree.InOrder(items):
            return "".join(map(_node_text, items))
        case tree.OneOf((first, *_)) | tree.Several(first):
            return _node_text(first)
        case tree.Separated(items, separator, _):
            return separator.join(_node_text(item) for item, _ in items)
        case tree.Json(schema):
            return json.dumps(_value(json.loads(schema)), ensure_ascii=False)
        case tree.TextBefore(tag, _, gap):
            return gap + tag
        case _:
            return ""


def _value(schema: Any) -> Any:
    """Returns the only value that a schema of constants allows."""
    if "const" in schema:
        return schema["const"]
    return {key: _value(value) for key, value in schema.get("properties", {}).items()}
