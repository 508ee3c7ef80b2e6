"""Reads `tool_choice`: which of the tools may be called, and whether one must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fastovms.api.conversation.tool_forms import OfferedTool, members_of, read_name
from fastovms.api.conversation.tool_targets import flat_name
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

WORDS: Final = ("none", "auto", "required")

Offered = Mapping[str, OfferedTool]
"""The tools, by the names of their functions."""


class ToolChoice(NamedTuple):
    """Which tools an answer may call.

    Attributes:
        names: those of their functions.
        is_required: whether one of them must be called.
        is_named: whether the request names the one.
    """

    names: Sequence[str]
    is_required: bool = False
    is_named: bool = False


class ChoiceForms(NamedTuple):
    """The forms of choices that are taken.

    Attributes:
        flat: whether members may stand beside the type.
        skips_others: whether tools of other types are passed over.
        checks: whether a choice must be of tools that there are.
    """

    flat: bool
    skips_others: bool
    checks: bool


def read_choice(
    choice: str | Mapping[str, Any] | None, tools: Offered, forms: ChoiceForms
) -> ToolChoice:
    """Reads a choice.

    Raises:
        InvalidField: it is malformed, or of a tool that there is not.
    """
    if choice is None:
        return ToolChoice(list(tools))
    if isinstance(choice, str):
        if choice not in WORDS:
            raise InvalidField(
                f"tool_choice must be one of {', '.join(WORDS)} or an object, not {show(choice)}",
                param="tool_choice",
            )
        if choice == "none":
            return ToolChoice([])
        if choice == "required":
            _check_any(tools, forms)
        return ToolChoice(list(tools), choice == "required")
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, forms)
    found = _found(choice, "tool_choice", tools, forms)
    return ToolChoice(found, is_required=True, is_named=True)


def _allowed(choice: Mapping[str, Any], tools: Offered, forms: ChoiceForms) -> ToolChoice:
    allowed, name = members_of(choice, "allowed_tools", "tool_choice", flat=forms.flat)
    mode = allowed.get("mode", "auto")
    if mode not in WORDS:
        raise InvalidField(
            f"{name}.mode must be one of {', '.join(WORDS)}, not {show(mode)}",
            param=f"{name}.mode",
        )
    name = f"{name}.tools"
    listed = allowed.get("tools")
    if not isinstance(listed, list) or not listed:
        raise InvalidField(f"{name} must be a list of tools, not {show(listed)}", param=name)
    names: list[str] = []
    for position, tool in enumerate(listed):
        place = f"{name}[{position}]"
        if not isinstance(tool, dict):
            raise InvalidField(f"{place} must be an object, not {show(tool)}", param=place)
        if forms.skips_others and tool.get("type") not in _KINDS:
            continue
        names += _found(tool, place, tools, forms)
    _check_any(tools, forms)
    if mode == "required" and not names and forms.checks:
        message = f"{name} lists no tool that the model can call, though one is required"
        raise InvalidField(message, param=name)
    return ToolChoice([] if mode == "none" else names, mode == "required")


_KINDS: Final = ("function", "custom")


def _found(
    choice: Mapping[str, Any], place: str, tools: Offered, forms: ChoiceForms
) -> Sequence[str]:
    """Returns the function of the tool that `{"type": "function", "function": {"name"}}` names, or
    the same with the name beside the type."""
    kind = choice.get("type")
    if forms.checks and kind not in _KINDS:
        raise InvalidField(
            f'{place}.type must be "function" or "custom", not {show(kind)}', param=f"{place}.type"
        )
    is_custom = kind == "custom"
    given, inner = members_of(choice, "custom" if is_custom else "function", place, flat=forms.flat)
    name, namespace = read_name(given, inner), given.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        inner = f"{inner}.namespace"
        raise InvalidField(f"{inner} must be a string, not {show(namespace)}", param=inner)
    _check_any(tools, forms)
    found = tools.get(flat_name(name, namespace))
    if found is None and namespace is None:
        # OpenAI's choices name no namespace.
        inside = [tool for tool in tools.values() if tool.target.name == name]
        if len(inside) > 1 and forms.checks:
            message = f"{place} names {show(name)}, which more than one namespace has"
            raise InvalidField(f"{message}: {inner}.namespace must say which", param=place)
        found = inside[0] if len(inside) == 1 else None
    if found is not None and found.target.is_custom == is_custom:
        return [found.tool.name]
    if forms.checks:
        raise InvalidField(f"{place} names {show(name)}, which is not among the tools", param=place)
    return []


def _check_any(tools: Offered, forms: ChoiceForms) -> None:
    if not tools and forms.checks:
        raise InvalidField("tool_choice is only allowed with tools", param="tool_choice")
