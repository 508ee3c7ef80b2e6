"""The tools that a chat request offers, `tool_choice`, and the tools' names in answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fastovms.api.body import one_of, optional, show, typed, wrong
from fastovms.api.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind
from fastovms.system.deferred import Deferred
from fastovms.text.output import input_parameters
from fastovms.text.parameters import CallChoice, Tool
from fastovms.text.tools.tool_format import ToolFormat

strict_schema: Final[Deferred[[Mapping[str, Any]], Mapping[str, Any]]] = Deferred(
    "grammar.json_schema:strict_schema"
)
regex_of_lark: Final[Deferred[[str], str | None]] = Deferred("grammar.lark:regex_of_lark")

MAX_NAME: Final = 256

_SYNTAXES: Final = ("lark", "regex")
_FORMATS: Final = ("text", "grammar")
_REGEX_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|.", re.DOTALL)
"""Matches a token of a regular expression: an escape, a class or a character."""

_ANY_TEXT: Final = "The input is free text."


class OfferedTool(NamedTuple):
    """A tool of a request.

    Attributes:
        tool: the function that the model calls.
        function: the function in OpenAI's format, for the template.
        target: the client's name and type of the tool.
        is_strict: whether its arguments are always constrained by its schema.
        warning: the unsupported feature; "" = none.
        input_grammar: the grammar for the text of a custom tool; None = free text.
        place: the path of its schema in the request.
    """

    tool: Tool
    function: Mapping[str, Any]
    target: ToolTarget
    is_strict: bool = False
    warning: str = ""
    input_grammar: Grammar | None = None
    place: str = ""


def read_function(
    function: Mapping[str, Any],
    place: str,
    namespace: str | None = None,
    *,
    schema: str = "parameters",
) -> OfferedTool:
    """Reads `{"name", "description", "parameters", "strict"}`. Raises InvalidField if the function
    is malformed.

    Args:
        place: the path of the function in the request.
        schema: the client's name for `parameters`.
    """
    target = ToolTarget(read_name(function, place), namespace)
    optional(function.get("description"), str, f"{place}.description")
    parameters = optional(function.get("parameters"), dict, f"{place}.{schema}") or {}
    is_strict = optional(function.get("strict"), bool, f"{place}.strict") is True
    tool = Tool(target.function, strict_schema(parameters) if is_strict else parameters)
    _check_arguments(tool.parameters.get("type"), f"{place}.{schema}.type")
    shown = {**function, "name": target.function}
    return OfferedTool(tool, shown, target, is_strict=is_strict, place=f"{place}.{schema}")


def read_custom(custom: Mapping[str, Any], place: str, namespace: str | None = None) -> OfferedTool:
    """Reads `{"name", "description", "format"}`, a tool with text input. The text's format is added
    to the function's description for the model. A regular expression also becomes a `pattern` in
    its schema; JSON Schema cannot express grammars. Raises InvalidField if the tool is
    malformed."""
    target = ToolTarget(read_name(custom, place), namespace, "custom")
    description = optional(custom.get("description"), str, f"{place}.description")
    name = f"{place}.format"
    words, enforced, warning = _format(custom.get("format"), name)
    pattern = None if enforced is None else enforced.source
    described = "\n\n".join(filter(None, (description, words)))
    shown = {
        "name": target.function,
        "description": described,
        "parameters": input_parameters(),
    }
    tool = Tool(target.function, input_parameters(pattern))
    return OfferedTool(tool, shown, target, pattern is not None, warning, enforced, name)


def read_name(named: Mapping[str, Any], place: str) -> str:
    """Returns the `name` of a tool. Raises InvalidField if the name is not a string, is empty or is
    too long."""
    name = named.get("name")
    place = f"{place}.name"
    if not isinstance(name, str) or not name:
        raise wrong(place, "a string that is not empty", name)
    if len(name) > MAX_NAME:
        raise InvalidField.about(place, f"must be at most {MAX_NAME} characters, not {len(name)}")
    return name


def members_of(
    tool: Mapping[str, Any], kind: str, place: str, *, flat: bool
) -> tuple[Mapping[str, Any], str]:
    """Returns the object that describes a tool or a choice, and its path: the field named after the
    type or, with `flat`, the object itself. Raises InvalidField if the field is missing."""
    members = tool.get(kind)
    if members is None and flat:
        return {key: value for key, value in tool.items() if key != "type"}, place
    place = f"{place}.{kind}"
    members = typed(members, dict, place)
    return members, place


def _check_arguments(kind: object, name: str) -> None:
    """Raises InvalidField unless the arguments' schema allows only objects."""
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        raise wrong(name, '"object"', kind)


def _format(form: object, place: str) -> tuple[str, Grammar | None, str]:
    """Returns the format of a custom tool's text: a description, its grammar (None = free text),
    and a warning about unsupported parts ("" = none)."""
    if form is None:
        return _ANY_TEXT, None, ""
    form = typed(form, dict, place)
    if _one_of(form, "type", _FORMATS, place) == "text":
        return _ANY_TEXT, None, ""
    # Chats nest the members in an object; responses have them next to the type.
    grammar, place = members_of(form, "grammar", place, flat=True)
    syntax = _one_of(grammar, "syntax", _SYNTAXES, place)
    place = f"{place}.definition"
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not definition:
        raise wrong(place, "a string that is not empty", definition)
    if syntax == "regex":
        words = f"The input must match this regular expression:\n{definition}"
        try:
            return words, Grammar(GrammarKind.REGEX, _without_anchors(definition), place), ""
        except ValueError as error:
            raise InvalidField.about(place, f"cannot be used: {error}") from None
    words = f"The input must follow this Lark grammar:\n{definition}"
    try:
        expression = regex_of_lark(definition)
    except ValueError as error:
        raise InvalidField.about(place, f"cannot be used: {error}") from None
    if expression is None:
        warning = (
            f"{place} is shown to the model but not enforced: no regular expression matches it"
        )
        return words, None, warning
    return words, Grammar(GrammarKind.REGEX, expression, place), ""


def _one_of(given: Mapping[str, Any], key: str, allowed: tuple[str, ...], place: str) -> str:
    value = given.get(key)
    if value not in allowed:
        place = f"{place}.{key}"
        choices = " or ".join(json.dumps(choice) for choice in allowed)
        raise wrong(place, choices, value)
    return str(value)


def _without_anchors(expression: str) -> str:
    """Returns a regular expression without its `^` and `$` anchors; it is always matched against
    the whole text. In alternatives without parentheses, an anchor belongs to one alternative.
    Raises ValueError if there is an unmatched `)`, which would close a group of the surrounding
    pattern."""
    depth, has_alternatives = 0, False
    for part in _REGEX_PART.findall(expression):
        has_alternatives |= part == "|" and not depth
        depth += {"(": 1, ")": -1}.get(part, 0)
        if depth < 0:
            raise ValueError("unopened group")
    if has_alternatives:
        return expression
    if expression.endswith("$") and _REGEX_PART.findall(expression)[-1] == "$":
        expression = expression[:-1]
    return expression.removeprefix("^")


class ToolTarget(NamedTuple):
    """The client's name and type of a tool.

    Attributes:
        namespace: the namespace of the tool; None = none.
        kind: the type of the tool: "function", "custom", or a type that its vendor defines, such as
            "shell".
    """

    name: str
    namespace: str | None = None
    kind: str = "function"

    @property
    def is_custom(self) -> bool:
        """Whether its input is free text instead of JSON arguments."""
        return self.kind == "custom"

    @property
    def text_member(self) -> str:
        """The name of a call's field with the arguments or text."""
        return "input" if self.is_custom else "arguments"

    @property
    def function(self) -> str:
        """The name of the function that the model calls."""
        return flat_name(self.name, self.namespace)


def flat_name(name: str, namespace: str | None) -> str:
    """Returns the function name that combines a namespace and a name, in Codex's format. In
    histories of openai 3.54, a function without a namespace may have its own name as its
    namespace."""
    if not namespace or namespace == name:
        return name
    has_gap = namespace.endswith("_") or name.startswith("_")
    return f"{namespace}{name}" if has_gap else f"{namespace}__{name}"


WORDS: Final = ("none", "auto", "required")


class ToolChoice(NamedTuple):
    """The tools that an answer may call.

    Attributes:
        names: the names of their functions.
        is_required: whether one of them must be called.
        is_named: whether the request names a single tool.
    """

    names: Sequence[str]
    is_required: bool = False
    is_named: bool = False


def read_choice(choice: str | Mapping[str, Any] | None, reader: ToolReader) -> ToolChoice:
    """Reads `tool_choice`. Raises InvalidField if it is malformed, or names an unknown tool.
    `reader` has read the request's tools."""
    if choice is None:
        return ToolChoice(list(reader.offered))
    if isinstance(choice, str):
        if choice not in WORDS:
            raise wrong("tool_choice", f"one of {', '.join(WORDS)} or an object", choice)
        if choice == "none":
            return ToolChoice([])
        if choice == "required":
            _check_any(reader)
        return ToolChoice(list(reader.offered), choice == "required")
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, reader)
    found = _found(choice, "tool_choice", reader)
    return ToolChoice(found, is_required=True, is_named=True)


def _allowed(choice: Mapping[str, Any], reader: ToolReader) -> ToolChoice:
    allowed, name = members_of(choice, "allowed_tools", "tool_choice", flat=reader.flat)
    mode = one_of(allowed.get("mode", "auto"), WORDS, f"{name}.mode")
    name = f"{name}.tools"
    listed = allowed.get("tools")
    if not isinstance(listed, list) or not listed:
        raise wrong(name, "a list of tools", listed)
    names: list[str] = []
    for position, tool in enumerate(listed):
        place = f"{name}[{position}]"
        tool = typed(tool, dict, place)
        kind = tool.get("type")
        if reader.skips_others and kind not in _KINDS and not reader.of_kind(kind):
            continue
        names += _found(tool, place, reader)
    _check_any(reader)
    if mode == "required" and not names and reader.checks:
        message = f"{name} lists no tool that the model can call, though one is required"
        raise InvalidField(message, param=name)
    return ToolChoice([] if mode == "none" else names, mode == "required")


_KINDS: Final = ("function", "custom")
COMPUTERS: Final = ("computer", "computer_use", "computer_use_preview")


def _found(choice: Mapping[str, Any], place: str, reader: ToolReader) -> Sequence[str]:
    """Returns the function names for a tool choice such as `{"type": "function", "function":
    {"name"}}`, or with the name next to the type."""
    kind = choice.get("type")
    if kind not in _KINDS and (found_by_type := reader.of_kind(kind)):
        return found_by_type
    if reader.checks and kind not in _KINDS:
        raise wrong(f"{place}.type", '"function", "custom" or that of one of the tools', kind)
    is_custom = kind == "custom"
    given, inner = members_of(
        choice, "custom" if is_custom else "function", place, flat=reader.flat
    )
    name = read_name(given, inner)
    namespace = optional(given.get("namespace"), str, f"{inner}.namespace")
    _check_any(reader)
    found = reader.offered.get(flat_name(name, namespace))
    if found is None and namespace is None:
        # OpenAI's choices name no namespace.
        inside = [tool for tool in reader.offered.values() if tool.target.name == name]
        if len(inside) > 1 and reader.checks:
            message = f"{place} names {show(name)}, which more than one namespace has"
            raise InvalidField(f"{message}: set {inner}.namespace to one of them", param=place)
        found = inside[0] if len(inside) == 1 else None
    if found is not None and found.target.kind == ("custom" if is_custom else "function"):
        return [found.tool.name]
    if reader.checks:
        raise InvalidField.about(place, f"names {show(name)}, which is not among the tools")
    return []


def _check_any(reader: ToolReader) -> None:
    if not reader.offered and reader.checks:
        raise InvalidField.about("tool_choice", "is only allowed with tools")


MAX_TOOLS: Final = 1024
_NO_CALLS: Final = (
    "tools: no call is found in the answer, as the model is served without a tool parser"
)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which functions an answer may call, and how.

    Attributes:
        tools: the functions that may be called.
        shown: the functions in OpenAI's format, for the template.
        targets: the client's tools, by function name.
        is_required: whether at least one call is required.
        is_named: whether the request names the one function to call.
        is_parallel: whether more than one call is allowed.
        strict: the functions whose arguments are always constrained by their schema.
        is_legacy: whether the request has `functions`, and the answer `function_call`.
        skipped: names of the ignored tools, for a warning.
        warnings: unsupported features of the other tools.
        input_grammars: the grammars for the texts of custom tools.
        places: the paths of the functions' schemas in the request, by function name.
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
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_strict(self) -> bool:
        """Whether the arguments of some functions are always constrained."""
        return bool(self.strict)

    @property
    def choice(self) -> CallChoice:
        """The allowed calls, for tool-call formats. There must be tools."""
        return CallChoice(
            self.tools,
            required=self.is_required,
            parallel=self.is_parallel,
            strict=self.is_strict,
        )

    @property
    def custom(self) -> frozenset[str]:
        """The functions that represent custom tools."""
        return frozenset(name for name, target in self.targets.items() if target.is_custom)

    def warnings_for(self, tool_format: ToolFormat | None) -> Sequence[str]:
        """Returns warnings about the tools' features that this tool-call format does not support;
        None = the model has no format."""
        if not self.tools or tool_format is not None:
            return self.warnings
        return [*self.warnings, _NO_CALLS]

    def target(self, function: str) -> ToolTarget:
        """Returns the client's tool for a function, whose name the model may have invented."""
        return self.targets.get(function) or ToolTarget(function)


def read_tools(
    given: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    parallel: bool | None,
    dialect: Dialect,
    *,
    flat: bool = False,
    skips_others: bool = False,
    read_other: ReadOther = lambda tool, place: (),
) -> ToolUse:
    """Reads the tools of a request. Tools that must not be called are hidden from the model. Raises
    InvalidField if a tool or the choice is malformed, or they contradict each other.

    Args:
        flat: whether, in every dialect, `function.name` may be written as `name` next to `type`, as
            in the Responses API, likewise the other fields of tools and choices. Tools in
            namespaces are then read, too.
        skips_others: whether tools of unknown types are ignored; otherwise they are refused.
        read_other: reads a tool of another type.
    """
    check_number_of_tools(given, "tools")
    reader = ToolReader(
        flat or dialect.flat_tools, flat, skips_others, dialect.checks_tool_choice, read_other
    )
    for position, tool in enumerate(given or ()):
        reader.read(tool, f"tools[{position}]")
    return reader.use(read_choice(choice, reader), is_parallel=parallel is not False)


def read_functions(
    given: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    dialect: Dialect,
) -> ToolUse:
    """Reads the legacy fields `functions` and `function_call`. An answer has at most one call.
    Raises InvalidField if a field is malformed, or the fields contradict each other."""
    name = "function_call"
    check_number_of_tools(given, "functions")
    reader = ToolReader()
    for position, function in enumerate(given or ()):
        place = f"functions[{position}]"
        reader.add(read_function(function, place), place)
    if isinstance(choice, str) and choice not in ("none", "auto"):
        raise wrong(name, "none, auto or an object", choice)
    if isinstance(choice, Mapping) and not reader.offered and dialect.checks_tool_choice:
        raise InvalidField.about(name, "is only allowed with functions")
    chosen = ToolChoice([] if choice == "none" else list(reader.offered))
    if isinstance(choice, Mapping):
        called = read_name(choice, name)
        if called in reader.offered:
            chosen = ToolChoice([called], is_required=True, is_named=True)
        elif dialect.checks_tool_choice:
            raise InvalidField.about(
                name, f"names {show(called)}, which is not among the functions"
            )
    return reader.use(chosen, is_parallel=False, is_legacy=True)


def check_number_of_tools(given: Sequence[object] | None, name: str) -> None:
    """Raises InvalidField if a request has too many tools. `name` is the path of the list."""
    if given is not None and len(given) > MAX_TOOLS:
        raise InvalidField.about(name, f"must have at most {MAX_TOOLS} entries, not {len(given)}")


ReadOther = Callable[[Mapping[str, Any], str], Sequence[OfferedTool]]
"""Returns the functions that represent a tool of a vendor's type, given the tool and its path in
the request; empty = the type is not supported."""


@dataclass(slots=True)
class ToolReader:
    """Reads tools one by one.

    Attributes:
        flat: whether `function.name` may be written as `name` next to `type`, likewise the other
            fields of tools and choices.
        has_namespaces: whether tools may be in namespaces.
        skips_others: whether tools of unknown types are ignored.
        checks: whether a choice must name an offered tool.
        read_other: reads a tool of another type.
        offered: the tools, by function name.
        skipped: names of the ignored tools, for a warning.
        descriptions: the descriptions of namespaces, by name.
    """

    flat: bool = False
    has_namespaces: bool = False
    skips_others: bool = False
    checks: bool = False
    read_other: ReadOther = lambda tool, place: ()
    offered: dict[str, OfferedTool] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    descriptions: dict[str, str] = field(default_factory=dict)

    def read(self, tool: object, place: str, namespace: str | None = None) -> None:
        """Reads a tool of any type. Raises InvalidField if it is malformed."""
        tool = typed(tool, dict, place)
        kind = tool.get("type")
        if kind in ("function", "custom"):
            members, inner = members_of(tool, kind, place, flat=self.flat)
            read = read_function if kind == "function" else read_custom
            self.add(read(members, inner, namespace), inner)
        elif kind == "namespace" and self.has_namespaces and namespace is None:
            self._read_namespace(tool, place)
        elif namespace is None and (others := self.read_other(tool, place)):
            for offered in others:
                self.add(offered, place)
        elif self.skips_others and isinstance(kind, str):
            self.skip(kind, place)
        else:
            raise wrong(f"{place}.type", '"function" or "custom"', kind)

    def of_kind(self, kind: object) -> Sequence[str]:
        """Returns the functions of the tools of a vendor's type, such as "shell". Clients may call
        "computer_use_preview" also "computer_use", and either one "computer"."""
        kinds = COMPUTERS if kind in COMPUTERS else (kind,)
        return [name for name, tool in self.offered.items() if tool.target.kind in kinds]

    def skip(self, kind: str, place: str) -> None:
        """Records that a tool of an unsupported type is ignored."""
        self.skipped.append(f"{place} of type {kind[:MAX_NAME]}")

    def add(self, tool: OfferedTool, place: str) -> None:
        """Adds a tool, replacing an earlier one of the same name. Raises InvalidField if another
        tool has the same function name."""
        if len(self.offered) == MAX_TOOLS:
            raise InvalidField(
                f"the request must have at most {MAX_TOOLS} tools in all", param="tools"
            )
        other = self.offered.get(tool.tool.name)
        if other is not None and other.target != tool.target:
            raise InvalidField(
                f"{place}: another tool has the name {show(tool.tool.name)} for the model too",
                param=place,
            )
        self.offered[tool.tool.name] = tool

    def use(self, choice: ToolChoice, *, is_parallel: bool, is_legacy: bool = False) -> ToolUse:
        """Returns how the chosen tools are used."""
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
            skipped=self.skipped,
            warnings=[tool.warning for tool in chosen if tool.warning],
            input_grammars=[tool.input_grammar for tool in chosen if tool.input_grammar],
            places={tool.tool.name: tool.place for tool in chosen},
        )

    def _read_namespace(self, tool: Mapping[str, Any], place: str) -> None:
        """Reads `{"name", "description", "tools"}`; its tools are read like top-level functions.
        Raises InvalidField if it is malformed."""
        name = read_name(tool, place)
        description = optional(tool.get("description"), str, f"{place}.description")
        tools = typed(tool.get("tools"), list, f"{place}.tools")
        check_number_of_tools(tools, f"{place}.tools")
        if description:
            self.descriptions[name] = description
        for position, inner_tool in enumerate(tools):
            self.read(inner_tool, f"{place}.tools[{position}]", name)

    def _shown(self, tools: Sequence[OfferedTool]) -> Iterator[Mapping[str, Any]]:
        """Yields the functions for the template. The first function of a namespace gets the
        namespace's description before its own."""
        described: set[str | None] = {None}
        for tool in tools:
            namespace = tool.target.namespace
            description = None if namespace in described else self.descriptions.get(namespace or "")
            described.add(namespace)
            if description:
                own = tool.function.get("description")
                yield {
                    **tool.function,
                    "description": "\n\n".join(filter(None, (description, own))),
                }
            else:
                yield tool.function
