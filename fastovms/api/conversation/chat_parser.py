"""What finds calls and thoughts in the answer to one chat."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastovms.api.conversation.chat_tools import ToolUse
from fastovms.api.request.generation_request import Terms
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.text.output_parser import output_parser
from fastovms.text.scanning.output import OutputParser, PlainParser


def parser_maker(
    asked: Terms, tools: ToolUse, prompt: str, model: ServedModel, dialect: Dialect
) -> Callable[[], OutputParser]:
    """Makes the parser of one sample's text.

    Args:
        prompt: the rendered one.
    """
    if not (asked.skip_special_tokens or dialect.parses_special_tokens):
        return PlainParser
    return partial(
        output_parser,
        model.chat.tool_format,
        model.chat.reasoning_format,
        prompt=prompt,
        tools=tools.tools,
    )
