"""Reads the functions that a chat may call: `tools`, `tool_choice` and `parallel_tool_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fastovms.api.wire.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.grammar.closed_schema import strict_schema
from fastovms.grammar.finite_schema import Schema
from fastovms.text.tools import CallChoice, Tool

MAX_TOOLS: Final = 1024
MAX_NAME: Final = 256

_WORDS: Final = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which functions an answer may call, and how.

    Attributes:
        tools: what may be called.
        shown: the same in OpenAI's form, for the template.
        is_required: whether at least one call must be made.
        is_named: whether the request names the one function to call.
        is_parallel: whether more than one call may be made.
        is_strict: whether a tool insists that its arguments follow their schema.
        skipped: names of the tools of other types than functions, which are passed over.
    """

    tools: Sequence[Tool] = ()
    shown: Sequence[Mapping[str, Any]] = ()
    is_required: bool = False
    is_named: bool = False
    is_parallel: bool = True
    is_strict: bool = False
    skipped: Sequence[str] = ()

    @property
    def choice(self) -> CallChoice:
        """The same in the words of the format of calls. There must be tools."""
        return CallChoice(
            self.tools,
            required=self.is_required,
            parallel=self.is_parallel,
            strict=self.is_strict,
        )


class _Forms(NamedTuple):
    """The forms of tools and choices that are taken.

    Attributes:
        flat: whether members may stand beside the type.
        skips_others: whether tools of other types than functions are passed over.
        checks_choice: whether a choice must be of tools that there are.
    """

    flat: bool
    skips_others: bool
    checks_choice: bool


def read_tools(
    given: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    parallel: bool | None,
    dialect: Dialect,
    *,
    flat: bool = False,
    skips_others: bool = False,
) -> ToolUse:
    """Reads the tools of a request. Those that must not be called are not shown to the model
    either.

    Args:
        flat: whether a tool's and a choice's members may stand beside the type, in every dialect.
        skips_others: whether tools of other types than functions are passed over, else refused.

    Raises:
        InvalidField: a tool or the choice is malformed, or they do not go together.
    """
    if given is not None and len(given) > MAX_TOOLS:
        raise InvalidField(
            f"tools must have at most {MAX_TOOLS} entries, not {len(given)}", param="tools"
        )
    shown = {}
    tools = {}
    skipped: list[str] = []
    forms = _Forms(flat or dialect.flat_tools, skips_others, dialect.checks_tool_choice)
    for position, tool in enumerate(given or ()):
        kind = tool.get("type")
        if skips_others and isinstance(kind, str) and kind != "function":
            skipped.append(f"tools[{position}] of type {kind[:MAX_NAME]}")
            continue
        form, read = _tool(tool, f"tools[{position}]", forms)
        shown[read.name], tools[read.name] = form, read
    names, is_required, is_named = _chosen(choice, tools, forms)
    return ToolUse(
        [tools[name] for name in names],
        [shown[name] for name in names],
        is_required=is_required and bool(names),
        is_named=is_named,
        is_parallel=parallel is not False and not is_named,
        is_strict=any(shown[name]["function"].get("strict") for name in names),
        skipped=skipped,
    )


def _tool(tool: Mapping[str, Any], name: str, forms: _Forms) -> tuple[dict[str, Any], Tool]:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidField(
            f'{name}.type must be "function", not {show(kind)}', param=f"{name}.type"
        )
    function = tool.get("function")
    if function is None and forms.flat:
        function = {key: value for key, value in tool.items() if key != "type"}
    else:
        name = f"{name}.function"
    if not isinstance(function, dict):
        raise InvalidField(f"{name} must be an object, not {show(function)}", param=name)
    called = _name(function, name)
    for key, kind, words in (
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "true or false"),
    ):
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            raise InvalidField(
                f"{name}.{key} must be {words}, not {show(value)}", param=f"{name}.{key}"
            )
    parameters: Schema = function.get("parameters") or {}
    read = Tool(called, strict_schema(parameters) if function.get("strict") else parameters)
    _check_arguments(read.parameters.get("type"), f"{name}.parameters.type")
    return {"type": "function", "function": function}, read


def _check_arguments(kind: object, name: str) -> None:
    """Checks that arguments are an object, whatever else the schema says of them."""
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        raise InvalidField(f'{name} must be "object", not {show(kind)}', param=name)


def _name(function: Mapping[str, Any], name: str) -> str:
    called = function.get("name")
    if not isinstance(called, str) or not called:
        raise InvalidField(
            f"{name}.name must be a string, not {show(called)}", param=f"{name}.name"
        )
    if len(called) > MAX_NAME:
        raise InvalidField(
            f"{name}.name must be at most {MAX_NAME} characters, not {len(called)}",
            param=f"{name}.name",
        )
    return called


def _chosen(
    choice: str | Mapping[str, Any] | None, tools: Mapping[str, Tool], forms: _Forms
) -> tuple[Sequence[str], bool, bool]:
    """Returns the names of the functions that may be called, whether one must be, and whether the
    choice is by its name."""
    if choice is None:
        return list(tools), False, False
    if isinstance(choice, str):
        if choice not in _WORDS:
            raise InvalidField(
                f"tool_choice must be one of {', '.join(_WORDS)} or an object, not {show(choice)}",
                param="tool_choice",
            )
        if choice == "none":
            return [], False, False
        _check_any(tools, forms)
        return list(tools), choice == "required", False
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, forms)
    name = _named(choice, "tool_choice", forms)
    _check_any(tools, forms)
    return _known([(name, "tool_choice")], tools, forms), True, True


def _allowed(
    choice: Mapping[str, Any], tools: Mapping[str, Tool], forms: _Forms
) -> tuple[Sequence[str], bool, bool]:
    name = "tool_choice.allowed_tools"
    allowed = choice.get("allowed_tools")
    if allowed is None and forms.flat:
        name, allowed = "tool_choice", choice
    if not isinstance(allowed, dict):
        raise InvalidField(f"{name} must be an object, not {show(allowed)}", param=name)
    mode = allowed.get("mode", "auto")
    if mode not in _WORDS:
        raise InvalidField(
            f"{name}.mode must be one of {', '.join(_WORDS)}, not {show(mode)}",
            param=f"{name}.mode",
        )
    name = f"{name}.tools"
    listed = allowed.get("tools")
    if not isinstance(listed, list) or not listed:
        raise InvalidField(f"{name} must be a list of tools, not {show(listed)}", param=name)
    names = []
    for position, tool in enumerate(listed):
        place = f"{name}[{position}]"
        if not isinstance(tool, dict):
            raise InvalidField(f"{place} must be an object, not {show(tool)}", param=place)
        if forms.skips_others and tool.get("type") != "function":
            continue
        names.append((_named(tool, place, forms), place))
    _check_any(tools, forms)
    known = _known(names, tools, forms)
    return [] if mode == "none" else known, mode == "required", False


def _named(choice: Mapping[str, Any], name: str, forms: _Forms) -> str:
    """Returns the name in `{"type": "function", "function": {"name"}}`, or in the same with the
    name beside the type."""
    kind = choice.get("type")
    if forms.checks_choice and kind != "function":
        raise InvalidField(
            f'{name}.type must be "function", not {show(kind)}', param=f"{name}.type"
        )
    function = choice.get("function")
    if function is None and forms.flat:
        function = choice
    else:
        name = f"{name}.function"
    if not isinstance(function, dict):
        raise InvalidField(f"{name} must be an object, not {show(function)}", param=name)
    return _name(function, name)


def _check_any(tools: Mapping[str, Tool], forms: _Forms) -> None:
    if not tools and forms.checks_choice:
        raise InvalidField("tool_choice is only allowed with tools", param="tool_choice")


def _known(names: Sequence[tuple[str, str]], tools: Mapping[str, Tool], forms: _Forms) -> list[str]:
    for name, place in names:
        if name not in tools and forms.checks_choice:
            raise InvalidField(
                f"{place} names {show(name)}, which is not among the tools", param=place
            )
    return [name for name, _ in names if name in tools]
