"""Constrains the answer to a chat: calls that follow their tools' schemas, the format that the
request asks for, or either, with reasoning before them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from fastovms.api.conversation.chat_prompt import TemplateOptions
from fastovms.api.conversation.chat_tools import ToolUse
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.structured import check_length, compile_grammar, grammar_of
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.grammar.json_schema import check_schema
from fastovms.params import Grammar
from fastovms.text.output_grammar import answer_grammar, call_grammar
from fastovms.text.output_parser import opens_reasoning
from fastovms.text.tools import Tool

logger = logging.getLogger(__name__)

_NOT_CONSTRAINED = "arguments of calls are not constrained: %s"


class Constraint(NamedTuple):
    """What an answer must look like.

    Attributes:
        is_optional: whether it may be left out where no grammar can be made of it.
        parts: grammars within it that may be at fault, each with its own field.
    """

    grammar: Grammar
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
    asked = grammar_of(request)
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
    calls = (tool_format, tools.choice) if tool_format is not None and tools.tools else None
    if asked is not None and not tools.is_required:
        if calls is not None:
            _check_schemas(tools.tools)
        grammar = answer_grammar(asked, reasoning_format, prompt=prompt, calls=calls)
        return Constraint(grammar, parts=tools.input_grammars)
    if calls is None:
        return None
    is_optional = not (tools.is_required or tools.is_strict)
    try:
        _check_schemas(tools.tools)
        grammar = call_grammar(calls[0], reasoning_format, calls[1], prompt=prompt)
        check_length(grammar, request.config)
    except InvalidField as error:
        if not is_optional:
            raise
        logger.info(_NOT_CONSTRAINED, error.message)
        return None
    return Constraint(grammar, is_optional, tools.input_grammars)


async def usable(
    request: Preparation[GenerationFields], wanted: Constraint | None
) -> Grammar | None:
    """Makes the grammar ready and returns it; None where there is none, or an optional one is of no
    use.

    Raises:
        InvalidField: it cannot be used. Where a part of it cannot either, the error is that part's.
        BackendError: it cannot be made ready now.
    """
    if wanted is None:
        return None
    try:
        return await compile_grammar(wanted.grammar, request.model, request.client)
    except (InvalidField, BackendUnavailable) as error:
        if not wanted.is_optional:
            if isinstance(error, InvalidField):
                for part in wanted.parts:
                    await compile_grammar(part, request.model, request.client)
            raise
        logger.info(_NOT_CONSTRAINED, error)
        return None


def _check_schemas(tools: Sequence[Tool]) -> None:
    """Raises InvalidField, which names the tool, for parameters of which no grammar can be made."""
    for tool in tools:
        try:
            check_schema(tool.parameters)
        except ValueError as fault:
            raise InvalidField(
                f"tools: the parameters of {show(tool.name)} cannot be used: {fault}", param="tools"
            ) from None
