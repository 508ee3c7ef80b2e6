"""Reads the tools that a chat may call: `tools`, `tool_choice` and `parallel_tool_calls`, or what
OpenAI had before them, `functions` and `function_call`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastovms.api.conversation.tool_choice import ChoiceForms, ToolChoice, read_choice
from fastovms.api.conversation.tool_forms import (
    MAX_NAME,
    OfferedTool,
    members_of,
    read_custom,
    read_function,
    read_name,
)
from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.params import Grammar
from fastovms.text.tools import CallChoice, Tool, ToolFormat

MAX_TOOLS: Final = 1024
_NO_CALLS: Final = (
    "tools: no call is found in the answer, as the model is served without a tool parser"
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which functions an answer may call, and how.

    Attributes:
        tools: what may be called.
        shown: the same in OpenAI's form, for the template.
        targets: what they are to the client, by the names of the functions.
        is_required: whether at least one call must be made.
        is_named: whether the request names the one function to call.
        is_parallel: whether more than one call may be made.
        strict: the functions whose arguments have to follow their schema in any case.
        is_legacy: whether the request has `functions`, and gets a `function_call`.
        skipped: tools that are passed over, in words for a warning.
        warnings: what cannot be done of the others.
        input_grammars: what the texts of custom tools are enforced to be.
    """

    tools: Sequence[Tool] = ()
    shown: Sequence[Mapping[str, Any]] = ()
    targets: Mapping[str, ToolTarget] = field(default_factory=dict)
    is_required: bool = False
    is_named: bool = False
    is_parallel: bool = True
    strict: frozenset[str] = frozenset()
    is_legacy: bool = False
    skipped: Sequence[str] = ()
    warnings: Sequence[str] = ()
    input_grammars: Sequence[Grammar] = ()

    @property
    def is_strict(self) -> bool:
        return bool(self.strict)

    @property
    def choice(self) -> CallChoice:
        """The same in the words of the format of calls. There must be tools."""
        return CallChoice(
            self.tools,
            required=self.is_required,
            parallel=self.is_parallel,
            strict=self.is_strict,
        )

    @property
    def custom(self) -> frozenset[str]:
        """The functions that stand for custom tools."""
        return frozenset(name for name, target in self.targets.items() if target.is_custom)

    def warnings_for(self, tool_format: ToolFormat | None) -> Sequence[str]:
        """Returns what cannot be done of the tools where a model writes its calls so; None = it
        makes none."""
        if not self.tools or tool_format is not None:
            return self.warnings
        return [*self.warnings, _NO_CALLS]

    def target(self, function: str) -> ToolTarget:
        """Returns what a function is to the client; the model may make up others."""
        return self.targets.get(function) or ToolTarget(function)


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
        flat: whether members of tools and choices may stand beside the type, in every dialect, and
            whether there are namespaces.
        skips_others: whether tools of other types are passed over; else they are refused.

    Raises:
        InvalidField: a tool or the choice is malformed, or they do not go together.
    """
    check_number_of_tools(given, "tools")
    reader = ToolReader(flat or dialect.flat_tools, flat, skips_others)
    for position, tool in enumerate(given or ()):
        reader.read(tool, f"tools[{position}]")
    forms = ChoiceForms(reader.flat, skips_others, dialect.checks_tool_choice)
    chosen = read_choice(choice, reader.offered, forms)
    return reader.use(chosen, is_parallel=parallel is not False)


def read_functions(
    given: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    dialect: Dialect,
) -> ToolUse:
    """Reads `functions` and `function_call`, of which an answer has at most one.

    Raises:
        InvalidField: one of them is malformed, or they do not go together.
    """
    name = "function_call"
    check_number_of_tools(given, "functions")
    reader = ToolReader()
    for position, function in enumerate(given or ()):
        place = f"functions[{position}]"
        reader.add(read_function(function, place), place)
    if isinstance(choice, str) and choice not in ("none", "auto"):
        raise InvalidField(
            f"{name} must be none, auto or an object, not {show(choice)}", param=name
        )
    if isinstance(choice, Mapping) and not reader.offered and dialect.checks_tool_choice:
        raise InvalidField(f"{name} is only allowed with functions", param=name)
    chosen = ToolChoice([] if choice == "none" else list(reader.offered))
    if isinstance(choice, Mapping):
        called = read_name(choice, name)
        if called in reader.offered:
            chosen = ToolChoice([called], is_required=True, is_named=True)
        elif dialect.checks_tool_choice:
            raise InvalidField(
                f"{name} names {show(called)}, which is not among the functions", param=name
            )
    return reader.use(chosen, is_parallel=False, is_legacy=True)


def check_number_of_tools(given: Sequence[object] | None, name: str) -> None:
    if given is not None and len(given) > MAX_TOOLS:
        raise InvalidField(
            f"{name} must have at most {MAX_TOOLS} entries, not {len(given)}", param=name
        )


class ToolReader:
    """Reads tools, one after the other.

    Attributes:
        flat: whether members may stand beside the type.
        offered: the tools, by the names of their functions.
    """

    def __init__(
        self, flat: bool = False, has_namespaces: bool = False, skips_others: bool = False
    ) -> None:
        self.flat = flat
        self.offered: dict[str, OfferedTool] = {}
        self._has_namespaces = has_namespaces
        self._skips_others = skips_others
        self._skipped: list[str] = []
        self._descriptions: dict[str, str] = {}

    def read(self, tool: object, place: str, namespace: str | None = None) -> None:
        """Reads a tool of any type. Raises InvalidField."""
        if not isinstance(tool, dict):
            raise InvalidField(f"{place} must be an object, not {show(tool)}", param=place)
        kind = tool.get("type")
        if kind in ("function", "custom"):
            members, inner = members_of(tool, kind, place, flat=self.flat)
            read = read_function if kind == "function" else read_custom
            self.add(read(members, inner, namespace), inner)
        elif kind == "namespace" and self._has_namespaces and namespace is None:
            self._read_namespace(tool, place)
        elif self._skips_others and isinstance(kind, str):
            self.skip(kind, place)
        else:
            kinds = '"function" or "custom"'
            raise InvalidField(
                f"{place}.type must be {kinds}, not {show(kind)}", param=f"{place}.type"
            )

    def skip(self, kind: str, place: str) -> None:
        """Notes that a tool is passed over, which is of a type that there is not."""
        self._skipped.append(f"{place} of type {kind[:MAX_NAME]}")

    def add(self, tool: OfferedTool, place: str) -> None:
        """Adds a tool; of two of the same name, the later one counts.

        Raises:
            InvalidField: the model could not tell it from another one.
        """
        if len(self.offered) == MAX_TOOLS:
            raise InvalidField(f"there must be at most {MAX_TOOLS} tools in all", param="tools")
        other = self.offered.get(tool.tool.name)
        if other is not None and other.target != tool.target:
            raise InvalidField(
                f"{place}: there is another tool that the model calls as {show(tool.tool.name)}",
                param=place,
            )
        self.offered[tool.tool.name] = tool

    def use(self, choice: ToolChoice, *, is_parallel: bool, is_legacy: bool = False) -> ToolUse:
        """Returns what becomes of the tools that are chosen."""
        chosen = [self.offered[name] for name in choice.names]
        return ToolUse(
            [tool.tool for tool in chosen],
            [{"type": "function", "function": function} for function in self._shown(chosen)],
            {tool.tool.name: tool.target for tool in chosen},
            is_required=choice.is_required and bool(chosen),
            is_named=choice.is_named,
            is_parallel=is_parallel and not choice.is_named,
            strict=frozenset(tool.tool.name for tool in chosen if tool.is_strict),
            is_legacy=is_legacy,
            skipped=self._skipped,
            warnings=[tool.warning for tool in chosen if tool.warning],
            input_grammars=[tool.input_grammar for tool in chosen if tool.input_grammar],
        )

    def _read_namespace(self, tool: Mapping[str, Any], place: str) -> None:
        """Reads `{"name", "description", "tools"}`: its tools become functions beside the others.
        Raises InvalidField."""
        name = read_name(tool, place)
        description, tools = tool.get("description"), tool.get("tools")
        for value, kind, key, words in (
            (description, str | None, "description", "a string"),
            (tools, list, "tools", "a list"),
        ):
            if not isinstance(value, kind):
                inner = f"{place}.{key}"
                raise InvalidField(f"{inner} must be {words}, not {show(value)}", param=inner)
        assert isinstance(tools, list)
        check_number_of_tools(tools, f"{place}.tools")
        if description:
            self._descriptions[name] = str(description)
        for position, inner_tool in enumerate(tools):
            self.read(inner_tool, f"{place}.tools[{position}]", name)

    def _shown(self, tools: Sequence[OfferedTool]) -> Iterator[Mapping[str, Any]]:
        """Returns functions for the template. What is said of a namespace stands before what is
        said of its first one."""
        told: set[str | None] = {None}
        for tool in tools:
            namespace = tool.target.namespace
            said = None if namespace in told else self._descriptions.get(namespace or "")
            told.add(namespace)
            if said:
                own = tool.function.get("description")
                yield {**tool.function, "description": "\n\n".join(filter(None, (said, own)))}
            else:
                yield tool.function
