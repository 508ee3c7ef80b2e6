"""What the answer to a chat must look like: calls that follow their tools' schemas, the format that
the request asks for, or both, with reasoning before them."""

from __future__ import annotations

import logging

from fastovms.api.chat_tools import ToolUse
from fastovms.api.schemas import GenerationFields
from fastovms.api.served import ServedModel
from fastovms.api.structured import check_length, compile_grammar, grammar_of
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.params import Grammar
from fastovms.text.output_grammar import answer_grammar, call_grammar

logger = logging.getLogger(__name__)


async def chat_grammar(
    body: GenerationFields, tools: ToolUse, prompt: str, model: ServedModel, config: ApiConfig
) -> Grammar | None:
    """The constraint on one request's answer, if there is one.

    Where the model may choose to call, schemas that no grammar can be made of leave the arguments
    free, unless a tool is strict.

    Args:
        prompt: the rendered one; it may have opened reasoning.

    Raises InvalidField: fields contradict each other, or a grammar cannot be used.
    """
    chat = model.chat
    asked = grammar_of(body, config)
    if not tools.tools:
        return asked and answer_grammar(asked, chat.reasoning_format, prompt=prompt)
    if chat.tool_format is None:
        if tools.is_required:
            raise InvalidField(
                "tool_choice can only be auto or none: how this model writes calls is not known",
                param="tool_choice",
            )
        return asked and answer_grammar(asked, chat.reasoning_format, prompt=prompt)
    if asked is not None and not tools.is_required:
        calls = chat.tool_format, tools.choice
        return answer_grammar(asked, chat.reasoning_format, prompt=prompt, calls=calls)
    if asked is not None and not asked.param.startswith("response_format"):
        raise InvalidField(
            f"{asked.param} cannot be used when tool_choice requires a call", param=asked.param
        )
    grammar = call_grammar(chat.tool_format, chat.reasoning_format, tools.choice, prompt=prompt)
    try:
        check_length(grammar, config)
        await compile_grammar(grammar, model.backend)
    except InvalidField as error:
        if tools.is_required or tools.is_strict:
            raise
        logger.info("arguments of calls are free: %s", error.message)
        return None
    return grammar
