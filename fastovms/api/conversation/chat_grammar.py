"""Constrains the answer to a chat: calls that follow their tools' schemas, the format that the
request asks for, or either, with reasoning before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fastovms.api.conversation.chat_prompt import TemplateOptions
from fastovms.api.conversation.chat_tools import ToolUse
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.structured import check_length, compile_grammar, grammar_of
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.grammar.json_schema import enforceable_schema
from fastovms.params import Grammar
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.output_parser import opens_reasoning
from fastovms.text.tools import Tool

_NOT_ENFORCED = "the schemas of the tools are not enforced"
_ANY_ARGUMENTS = {"type": "object"}


class Constraint(NamedTuple):
    """What an answer must look like.

    Attributes:
        is_optional: whether it may be left out where no grammar can be made of it.
        parts: grammars within it that may be at fault, each with its own field.
        warnings: what of the request is not enforced.
    """

    grammar: Grammar | None
    warnings: list[str]
    is_optional: bool = False
    parts: Sequence[Grammar] = ()


def constraint(
    request: Preparation[GenerationFields], tools: ToolUse, prompt: str, options: TemplateOptions
) -> Constraint | None:
    """Returns the constraint on one request's answer, if there is one, in time proportional to the
    schemas.

    Args:
        prompt: the rendered one; it may have opened reasoning.
        options: those with which it was rendered. They may say that there is to be no reasoning.

    Raises:
        InvalidField: fields contradict each other, or are malformed.
    """
    chat = request.model.chat
    tool_format, reasoning_format = chat.tool_format, chat.reasoning_format
    if reasoning_format is not None and options.kwargs.get("enable_thinking") is False:
        reasoning_format = reasoning_format if opens_reasoning(reasoning_format, prompt) else None
    warnings: list[str] = []
    asked = grammar_of(request, warnings)
    if tools.is_required:
        if tool_format is None:
            raise InvalidField(
                "tool_choice can only be auto or none: how this model writes calls is not known",
                param="tool_choice",
            )
        if asked is not None and not asked.param.startswith(request.names.response_format):
            raise InvalidField(
                f"{asked.param} cannot be used when tool_choice requires a call", param=asked.param
            )
    calls = None
    if tool_format is not None and tools.tools:
        calls = tool_format, replace(tools.choice, tools=_enforceable(tools, warnings))
    if asked is not None and not tools.is_required:
        grammar = answer_grammar(asked, reasoning_format, prompt=prompt, calls=calls)
        return Constraint(grammar, warnings, parts=tools.input_grammars)
    if calls is None:
        return None
    is_optional = not (tools.is_required or tools.is_strict)
    try:
        grammar = call_grammar(calls[0], reasoning_format, calls[1], prompt=prompt)
        check_length(grammar, request.config)
    except InvalidField as error:
        if not is_optional:
            raise
        return Constraint(None, [*warnings, f"{_NOT_ENFORCED}: {error.message}"])
    return Constraint(grammar, warnings, is_optional, tools.input_grammars)


async def usable(
    request: Preparation[GenerationFields], wanted: Constraint | None
) -> Grammar | None:
    """Makes the grammar ready and returns it; None where there is none, or an optional one cannot
    be compiled, of which there is a warning then.

    Raises:
        InvalidField: it cannot be used. Where a part of it cannot either, the error is that part's.
        BackendError: it cannot be made ready now.
    """
    if wanted is None or wanted.grammar is None:
        return None
    try:
        return await compile_grammar(wanted.grammar, request.model, request.client)
    except (InvalidField, BackendUnavailable) as error:
        if not wanted.is_optional:
            if isinstance(error, InvalidField):
                for part in wanted.parts:
                    await compile_grammar(part, request.model, request.client)
            raise
        wanted.warnings.append(f"{_NOT_ENFORCED}: {error}")
        return None


def _enforceable(tools: ToolUse, warnings: list[str]) -> Sequence[Tool]:
    """Returns the tools with what grammars enforce of their schemas. Each keyword that is left out
    is warned of.

    Raises:
        InvalidField: a strict tool has such a keyword, or the schema of a tool that is strict or
            must be called is malformed.
    """
    found: list[Tool] = []
    for tool in tools.tools:
        name = f"the parameters of {show(tool.name)}"
        is_strict = tool.name in tools.strict
        try:
            schema, unenforced = enforceable_schema(tool.parameters)
        except ValueError as fault:
            if is_strict or tools.is_required:
                message = f"tools: {name} cannot be used: {fault}"
                raise InvalidField(message, param="tools") from None
            warnings.append(f"{name} are not enforced: {fault}")
            schema, unenforced = _ANY_ARGUMENTS, ()
        if is_strict and unenforced:
            raise InvalidField(f"tools: {name}: {unenforced[0]}", param="tools")
        if unenforced:
            warnings.append(f"{name}: {', '.join(map(str, unenforced))}")
        found.append(replace(tool, parameters=schema, is_relaxed=not is_strict))
    return found
