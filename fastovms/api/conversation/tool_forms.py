"""Reads one tool of a request in each form that clients give them, and tells of it as of a
function: that is what templates and formats of calls have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fastovms.api.conversation.tool_targets import ToolTarget
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.grammar.lark.lark_regex import Irregular, lark_regex
from fastovms.grammar.schemas.closed_schema import strict_schema
from fastovms.grammar.schemas.finite_schema import Schema
from fastovms.params import Grammar, GrammarKind
from fastovms.text.custom_input import input_parameters
from fastovms.text.tools import Tool

MAX_NAME: Final = 256

_SYNTAXES: Final = ("lark", "regex")
_FORMATS: Final = ("text", "grammar")
_REGEX_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|.", re.DOTALL)
"""A character of a regular expression, an escape or a class."""

_ANY_TEXT: Final = "The input is free text."


class OfferedTool(NamedTuple):
    """A tool of a request.

    Attributes:
        tool: what the model calls.
        function: the same in OpenAI's form, for the template.
        target: what it is to the client.
        is_strict: whether its arguments have to follow its schema in any case.
        warning: what cannot be done of it; empty = nothing.
        input_grammar: what the text of a custom tool is enforced to be; None = free.
    """

    tool: Tool
    function: Mapping[str, Any]
    target: ToolTarget
    is_strict: bool = False
    warning: str = ""
    input_grammar: Grammar | None = None


def read_function(
    function: Mapping[str, Any],
    place: str,
    namespace: str | None = None,
    *,
    schema: str = "parameters",
) -> OfferedTool:
    """Reads `{"name", "description", "parameters", "strict"}`.

    Args:
        place: its path in the request.
        schema: what the client calls `parameters`.

    Raises:
        InvalidField: it is malformed.
    """
    target = ToolTarget(read_name(function, place), namespace)
    for key, kind, words in (
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "true or false"),
    ):
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            named = schema if key == "parameters" else key
            raise InvalidField(
                f"{place}.{named} must be {words}, not {show(value)}", param=f"{place}.{named}"
            )
    parameters: Schema = function.get("parameters") or {}
    is_strict = function.get("strict") is True
    tool = Tool(target.function, strict_schema(parameters) if is_strict else parameters)
    _check_arguments(tool.parameters.get("type"), f"{place}.{schema}.type")
    shown = {**function, "name": target.function}
    return OfferedTool(tool, shown, target, is_strict=is_strict)


def read_custom(custom: Mapping[str, Any], place: str, namespace: str | None = None) -> OfferedTool:
    """Reads `{"name", "description", "format"}`, a tool that takes text. What the text has to look
    like stands in the description of the function, for the model, and in its schema, as far as a
    regular expression says it: JSON schemas have no grammars.

    Raises:
        InvalidField: it is malformed.
    """
    target = ToolTarget(read_name(custom, place), namespace, is_custom=True)
    description = custom.get("description")
    if description is not None and not isinstance(description, str):
        name = f"{place}.description"
        raise InvalidField(f"{name} must be a string, not {show(description)}", param=name)
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
    return OfferedTool(tool, shown, target, pattern is not None, warning, enforced)


def read_name(named: Mapping[str, Any], place: str) -> str:
    """Reads `name`.

    Raises:
        InvalidField: it is no string, empty or too long.
    """
    name = named.get("name")
    place = f"{place}.name"
    if not isinstance(name, str) or not name:
        raise InvalidField(
            f"{place} must be a string that is not empty, not {show(name)}", param=place
        )
    if len(name) > MAX_NAME:
        raise InvalidField(
            f"{place} must be at most {MAX_NAME} characters, not {len(name)}", param=place
        )
    return name


def members_of(
    tool: Mapping[str, Any], kind: str, place: str, *, flat: bool
) -> tuple[Mapping[str, Any], str]:
    """Returns the object that says more about a tool or a choice, and its path: the member that has
    the type's name, or else what stands beside the type.

    Args:
        flat: whether it may stand there.

    Raises:
        InvalidField: there is none.
    """
    members = tool.get(kind)
    if members is None and flat:
        return {key: value for key, value in tool.items() if key != "type"}, place
    place = f"{place}.{kind}"
    if not isinstance(members, dict):
        raise InvalidField(f"{place} must be an object, not {show(members)}", param=place)
    return members, place


def _check_arguments(kind: object, name: str) -> None:
    """Checks that arguments are an object, whatever else the schema says of them."""
    if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
        raise InvalidField(f'{name} must be "object", not {show(kind)}', param=name)


def _format(form: object, place: str) -> tuple[str, Grammar | None, str]:
    """Returns a format in words, as a regular expression, and what cannot be done of it."""
    if form is None:
        return _ANY_TEXT, None, ""
    if not isinstance(form, dict):
        raise InvalidField(f"{place} must be an object, not {show(form)}", param=place)
    if _one_of(form, "type", _FORMATS, place) == "text":
        return _ANY_TEXT, None, ""
    # Chats have its members in one more object, responses beside the type.
    grammar, place = members_of(form, "grammar", place, flat=True)
    syntax = _one_of(grammar, "syntax", _SYNTAXES, place)
    place = f"{place}.definition"
    definition = grammar.get("definition")
    if not isinstance(definition, str) or not definition:
        raise InvalidField(
            f"{place} must be a string that is not empty, not {show(definition)}", param=place
        )
    if syntax == "regex":
        words = f"The input must match this regular expression:\n{definition}"
        try:
            return words, Grammar(GrammarKind.REGEX, _without_anchors(definition), place), ""
        except ValueError as error:
            raise InvalidField(f"{place} cannot be used: {error}", param=place) from None
    words = f"The input must follow this Lark grammar:\n{definition}"
    try:
        return words, Grammar(GrammarKind.REGEX, lark_regex(definition), place), ""
    except ValueError as error:
        raise InvalidField(f"{place} cannot be used: {error}", param=place) from None
    except Irregular:
        warning = f"{place} is told to the model but not enforced: no regular expression says it"
        return words, None, warning


def _one_of(given: Mapping[str, Any], key: str, allowed: tuple[str, ...], place: str) -> str:
    value = given.get(key)
    if value not in allowed:
        place = f"{place}.{key}"
        choices = " or ".join(json.dumps(choice) for choice in allowed)
        raise InvalidField(f"{place} must be {choices}, not {show(value)}", param=place)
    return str(value)


def _without_anchors(expression: str) -> str:
    """Returns an expression without the marks of the beginning and the end of the text, which is
    matched as a whole in any case. Where alternatives stand beside each other, a mark is one
    alternative's.

    Raises:
        ValueError: it closes a group that it has not opened, which would be that of whoever embeds
            it.
    """
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
