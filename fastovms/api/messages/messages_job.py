"""Checks every field of a request for a message, and makes what runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fastovms.api.conversation.chat_grammar import constraint
from fastovms.api.conversation.chat_messages import ChatMessages
from fastovms.api.conversation.chat_prompt import (
    PromptMaker,
    TemplateFields,
    TemplateOptions,
    template_options,
)
from fastovms.api.conversation.chat_task import ReadChat, chat_task, hides_content, parser_maker
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.deltas import Usage
from fastovms.api.messages.answer_form import AnswerForm
from fastovms.api.messages.blocks_to_messages import to_messages
from fastovms.api.messages.messages_fields import MessageFields, check_filling, read_fields
from fastovms.api.messages.messages_schema import MessagesRequest
from fastovms.api.messages.tool_fields import read_tools
from fastovms.api.request.generation_options import (
    GenerationOptions,
    check_numbers,
    generation_options,
)
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import FieldNames, Preparation
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.api.request.tokens.token_budget import TokenBudget, token_budget
from fastovms.api.request.tokens.token_report import token_report
from fastovms.api.serving.images import images_of_request
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.warning_header import passed_over
from fastovms.errors import InvalidField
from fastovms.text.scanning.output import OutputParser

_SWITCH = "enable_thinking"
"""The variable by which templates let thinking be switched."""


@dataclass(frozen=True, slots=True)
class MessagesJob:
    """A request for a message that is ready to run.

    Attributes:
        form: how the answer is told.
        warnings: what of the request is not done.
        new_parser: makes the parser of the answer's text.
        only_computes_prompt: whether nothing is answered: the token that is generated is dropped.
    """

    preparation: Preparation[MessagesRequest]
    options: GenerationOptions
    task: PromptTask
    form: AnswerForm
    warnings: Sequence[str]
    new_parser: Callable[[], OutputParser]
    only_computes_prompt: bool


async def prepare(
    request: Preparation[MessagesRequest], new_call_id: Callable[[], str]
) -> MessagesJob:
    """Checks a request and makes what runs it. Long chats are rendered and encoded in a thread.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    fields = read_fields(request.body)
    if request.body.max_tokens == 0:
        check_filling(request.body)
    return await _prepare(request, fields, new_call_id)


async def _prepare(
    request: Preparation[MessagesRequest], fields: MessageFields, new_call_id: Callable[[], str]
) -> MessagesJob:
    """Does what `prepare` does, with fields that are checked."""
    only_computes_prompt = request.body.max_tokens == 0
    request = _in_our_words(request, fields)
    check_numbers(request)
    options = generation_options(request, token_report(request, None), _budget(request))

    def read() -> ReadChat:
        messages, images, unseen = _messages(request)
        tools = read_tools(request.body.tools, request.body.tool_choice)
        template = _template(request, fields, messages)
        prompt = PromptMaker(request, tools, template, options.truncation).make(
            messages, len(images)
        )
        if only_computes_prompt:
            return ReadChat(prompt, tools, images, None, unseen)
        wanted = constraint(request, tools, prompt.end, template)
        return ReadChat(prompt, tools, images, wanted, unseen)

    chat = await offload.run(read, request.size)
    task = await chat_task(request, options, chat)
    tools = chat.tools
    shown = ShownPieces(
        hides_reasoning=not _thinks(request, fields),
        hides_content=hides_content(request, options, tools),
        one_call=not tools.is_parallel,
    )
    # The operator's limit counts as if the request had named it.
    max_tokens = 0 if only_computes_prompt else options.budget.max_tokens or 0
    form = AnswerForm(shown, new_call_id, max_tokens, omits_thinking=fields.omits_thinking)
    warnings = [
        *passed_over([*tools.skipped, *fields.warnings]),
        *chat.warnings,
        *tools.warnings_for(request.model.chat.tool_format),
        *chat.prompt.warnings,
    ]
    new_parser = parser_maker(request, options, chat)
    return MessagesJob(request, options, task, form, warnings, new_parser, only_computes_prompt)


async def count_tokens(
    request: Preparation[MessagesRequest], compute: Callable[[MessagesJob], Awaitable[Usage]]
) -> int:
    """Counts the tokens of the prompt that `prepare` would make.

    Args:
        compute: computes a prompt and returns what that has cost. Only the model knows how many
            tokens images are, so that a prompt with some has to be computed.

    Raises:
        RequestError: a field is at fault.
        BackendError: a prompt with images cannot be computed now.
    """
    fields = read_fields(request.body)

    def make() -> Prompt | None:
        messages, images, _ = _messages(request)
        if images:
            return None
        tools = read_tools(request.body.tools, request.body.tool_choice)
        template = _template(request, fields, messages)
        return PromptMaker(request, tools, template).make(messages)

    prompt = await offload.run(make, request.size)
    if prompt is not None:
        return len(prompt.token_ids)
    # What is said of the answer has no say in what its prompt is.
    body = msgspec.structs.replace(
        request.body, max_tokens=0, min_tokens=None, stop=None, stop_sequences=None, stream=None
    )
    job = await _prepare(replace(request, body=body), fields, str)
    return (await compute(job)).prompt_tokens


def names_of(body: MessagesRequest) -> FieldNames:
    """Returns what a request calls its fields."""
    stop = "stop" if body.stop_sequences is None else "stop_sequences"
    return FieldNames("messages", "max_tokens", "logprobs", stop=stop)


def _in_our_words(
    request: Preparation[MessagesRequest], fields: MessageFields
) -> Preparation[MessagesRequest]:
    """Has Anthropic's fields stand in for those of the other endpoints that say the same."""
    body, names = request.body, request.names
    if body.stop_sequences is not None:
        body = msgspec.structs.replace(body, stop=body.stop_sequences)
    if fields.format is None:
        return replace(request, body=body)
    name = fields.format_name
    names = replace(names, response_format=name, json_schema=name)
    return replace(request, body=body, names=names, text_format=fields.format)


def _messages(request: Preparation[MessagesRequest]) -> ChatMessages:
    body = request.body
    return to_messages(body.system, body.messages, images_of_request(request.model.images))


def _template(
    request: Preparation[MessagesRequest],
    fields: MessageFields,
    messages: Sequence[dict[str, Any]],
) -> TemplateOptions:
    """Returns what the template is told. An answer goes on with what the assistant has begun to
    say last."""
    last = messages[-1]
    continues = last["role"] == "assistant"
    if continues and "tool_calls" in last:
        raise InvalidField(
            "messages: what tools have answered must follow the last message, which uses tools",
            param="messages",
        )
    kwargs = dict(request.body.chat_template_kwargs or {})
    if fields.effort is not None:
        kwargs.setdefault("reasoning_effort", fields.effort)
    thinks = fields.thinks
    if thinks is None and _can_switch(request.model) and not _thinks(request, fields):
        thinks = False
    given = TemplateFields(continue_final_message=continues, kwargs=kwargs, enable_thinking=thinks)
    return template_options(request.model, given)


def _thinks(request: Preparation[MessagesRequest], fields: MessageFields) -> bool:
    """Returns whether thoughts are wanted: clients that ask for none expect text first of all. What
    the request tells the template, or the operator has told it, counts too."""
    asked = (request.body.chat_template_kwargs or {}).get(_SWITCH, fields.thinks)
    if asked is None:
        asked = request.model.chat.config.default_chat_template_kwargs.get(_SWITCH)
    return bool(asked)


def _can_switch(model: ServedModel) -> bool:
    template = model.chat.template
    return template is not None and _SWITCH in template.tool_source


def _budget(request: Preparation[MessagesRequest]) -> TokenBudget:
    requested = request.body.max_tokens
    if requested is None:
        raise InvalidField("max_tokens is required", param="max_tokens")
    # A prompt is only computed where there is a token to generate behind it.
    return token_budget(request, requested or 1, may_reach_limit=True)
