"""Turns a chat that is rendered and encoded into the backend's task, and makes the parsers of its
answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from fastovms.api.conversation.chat_grammar import Constraint, usable
from fastovms.api.conversation.chat_tools import ToolUse
from fastovms.api.request.generation_options import GenerationOptions
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompt_images import with_images
from fastovms.api.request.prompting.prompt_task import ModelInput, PromptTask, make_tasks
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.media.loader import ImageSource
from fastovms.text.custom_input import CustomCallParser
from fastovms.text.output_parser import output_parser
from fastovms.text.scanning.output import OutputParser, PlainParser


class ReadChat(NamedTuple):
    """A chat as the model reads it.

    Attributes:
        images: those of the prompt.
        constraint: what the answer must look like; None = anything.
        unseen: the parts that the model cannot read, in words for a warning.
    """

    prompt: Prompt
    tools: ToolUse
    images: Sequence[ImageSource]
    constraint: Constraint | None
    unseen: Sequence[str] = ()

    @property
    def warnings(self) -> Sequence[str]:
        """What of the request the model cannot read, or its answer does not keep to."""
        return [*self.unseen, *(self.constraint.warnings if self.constraint else ())]


async def chat_task(
    request: Preparation[GenerationFields],
    options: GenerationOptions,
    chat: ReadChat,
    num_prompt_logprobs: int | None = None,
) -> PromptTask:
    """Makes what the backend gets for a chat.

    Args:
        num_prompt_logprobs: top log probabilities of the prompt's tokens that are needed.

    Raises:
        RequestError: the chat does not fit, or cannot be answered so.
        BackendError: the grammar cannot be compiled, or the images not be kept, now.
    """
    grammar = await usable(request, chat.constraint)
    given = ModelInput([chat.prompt.token_ids], grammar, num_prompt_logprobs)
    [task] = await make_tasks(request, options, given)
    return await with_images(request, options, task, chat.prompt.text, chat.images)


def parser_maker(
    request: Preparation[GenerationFields], options: GenerationOptions, chat: ReadChat
) -> Callable[[], OutputParser]:
    """Returns what makes the parser of one sample's text, which finds calls and thoughts in it."""
    if not _parses(request, options):
        return PlainParser
    new_parser = partial(
        output_parser,
        request.model.chat.tool_format,
        request.model.chat.reasoning_format,
        prompt=chat.prompt.end,
        tools=chat.tools.tools,
    )
    custom = chat.tools.custom
    return (lambda: CustomCallParser(new_parser(), custom)) if custom else new_parser


def finds_markup(
    request: Preparation[GenerationFields], options: GenerationOptions, tools: ToolUse
) -> bool:
    """Returns whether anything but content may be found in the answers."""
    chat = request.model.chat
    has_calls = chat.tool_format is not None and bool(tools.tools)
    return _parses(request, options) and (has_calls or chat.reasoning_format is not None)


def hides_content(
    request: Preparation[GenerationFields], options: GenerationOptions, tools: ToolUse
) -> bool:
    """Returns whether only calls are told of an answer that must be calls. Where nothing looks for
    them, all that the model says is content."""
    return tools.is_required and _parses(request, options)


def _parses(request: Preparation[GenerationFields], options: GenerationOptions) -> bool:
    return options.skip_special_tokens or request.dialect.parses_special_tokens
