"""Writes the tools of a request and the choice of them as a response repeats them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
"""What is repeated of a tool, by its type."""


def echoed_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns tools that have been read as OpenAI has them, whatever form they came in. Those that
    are passed over are left out."""
    return [
        _namespace(tool) if tool["type"] == "namespace" else _tool(tool)
        for tool in tools
        if tool["type"] in (*_MEMBERS, "namespace")
    ]


def echoed_choice(choice: str | Mapping[str, Any] | None) -> object:
    """Returns a choice that has been read as OpenAI has it."""
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.get("type") != "allowed_tools":
        return _named(choice)
    allowed = choice.get("allowed_tools") or choice
    return {
        "type": "allowed_tools",
        "mode": allowed.get("mode", "auto"),
        "tools": [_named(tool) for tool in allowed["tools"] if tool.get("type") in _MEMBERS],
    }


def _namespace(tool: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: tool.get(key) for key in ("type", "name", "description")}
    return {**told, "tools": [_tool(inner) for inner in tool["tools"] if inner["type"] in _MEMBERS]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool["type"]
    members = tool.get(kind) or tool
    told = {name: members.get(name) for name in _MEMBERS[kind]}
    if kind == "custom":
        # Neither may be null (openai 3.54).
        told = {name: value for name, value in told.items() if value is not None}
    return {"type": kind, **told}


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = "custom" if choice.get("type") == "custom" else "function"
    return {"type": kind, "name": (choice.get(kind) or choice)["name"]}
