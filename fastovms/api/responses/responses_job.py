"""Checks every field of a request to `/responses`, and makes what runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fastovms.api.conversation.chat_grammar import constraint
from fastovms.api.conversation.chat_prompt import PromptMaker, TemplateFields, template_options
from fastovms.api.conversation.chat_task import ReadChat, chat_task, parser_maker
from fastovms.api.conversation.chat_tools import ToolUse, read_tools
from fastovms.api.conversation.dropped_messages import fitting
from fastovms.api.request.candidates import check_num_choices
from fastovms.api.request.common_fields import num_logprobs
from fastovms.api.request.generation_options import (
    GenerationOptions,
    check_numbers,
    generation_options,
)
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import FieldNames, Preparation
from fastovms.api.request.prompting.prompt_images import kept_images
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.api.request.prompting.prompts import Prompt
from fastovms.api.request.tokens.token_budget import TokenBudget, token_budget
from fastovms.api.request.tokens.token_report import token_report
from fastovms.api.responses.input.hosted_items import Item
from fastovms.api.responses.input.items_to_messages import to_messages
from fastovms.api.responses.input.response_fields import ResponseFields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.stored.history import History
from fastovms.api.serving.images import image_tokens_unknown, images_of_request
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.media.loader import ImageSource
from fastovms.text.scanning.output import OutputParser

_USUAL_ANSWER_SHARE: Final = 8
"""Where older messages may be dropped, one part in so many of the context is kept free for an
answer of no stated length."""


@dataclass(frozen=True, slots=True)
class ResponsesJob:
    """A responses request that is ready to run.

    Attributes:
        prompt: what the model is given.
        warnings: the parts that the model cannot read, in words for a warning.
        new_parser: makes the parser of one sample's text.
    """

    preparation: Preparation[ResponsesRequest]
    options: GenerationOptions
    task: PromptTask
    tools: ToolUse
    prompt: Prompt
    warnings: Sequence[str]
    new_parser: Callable[[], OutputParser]


async def prepare(
    request: Preparation[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    kept_prompt: Prompt | None = None,
) -> ResponsesJob:
    """Checks a request and makes what runs it. Long contexts are rendered and encoded in a thread.

    Args:
        kept_prompt: the prompt of a request that ran before, which has no images; None = one is
            made of the history.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    request = _with_format(request, fields)
    body = request.body
    check_numbers(request)
    top_logprobs = num_logprobs(body.top_logprobs, "top_logprobs", request.config) or 0
    report = token_report(request, top_logprobs if fields.logprobs else None)
    options = generation_options(request, report, _budget(request, fields))
    check_num_choices(options.candidates, request.config)
    maker = _prompt_maker(request, fields, history)
    maker = replace(maker, truncation=options.truncation)

    def read() -> ReadChat:
        if kept_prompt is None:
            prompt, images, unseen = _make_prompt(request, maker, history, options.budget)
        else:
            prompt, images, unseen = kept_prompt, (), ()
        wanted = constraint(request, maker.tools, prompt.end, maker.options)
        if images and maker.may_lose_images:
            prompt, images = kept_images(prompt, images)
        return ReadChat(prompt, maker.tools, images, wanted, unseen)

    chat = await offload.run(read, history.size)
    task = await chat_task(request, options, chat)
    new_parser = parser_maker(request, options, chat)
    return ResponsesJob(request, options, task, chat.tools, chat.prompt, chat.warnings, new_parser)


async def count_tokens(
    request: Preparation[ResponsesRequest], fields: ResponseFields, history: History
) -> int:
    """Counts the tokens of the prompt that `prepare` would make.

    Raises:
        RequestError: a field is at fault.
    """
    maker = _prompt_maker(request, fields, history)
    make = partial(_make_prompt, request, maker, history, TokenBudget(None, None))
    prompt, images, _ = await offload.run(make, history.size)
    if images:
        raise image_tokens_unknown(images[0])
    return len(prompt.token_ids)


def names_of(body: ResponsesRequest) -> FieldNames:
    """Returns what a response's request calls its fields, where it has no `text.format`."""
    return FieldNames("input", "max_output_tokens", "top_logprobs")


def _with_format(
    request: Preparation[ResponsesRequest], fields: ResponseFields
) -> Preparation[ResponsesRequest]:
    """Has `text.format`, where it asks for something, stand in for `response_format`."""
    if fields.response_format is None:
        return request
    names = replace(request.names, response_format="text.format", json_schema="text.format")
    return replace(request, names=names, text_format=fields.response_format)


def _prompt_maker(
    request: Preparation[ResponsesRequest], fields: ResponseFields, history: History
) -> PromptMaker:
    """Returns what makes the prompt."""
    body = request.body
    tools = _tools(body, request.dialect)
    given = TemplateFields(
        continue_final_message=_is_unfinished(history.items),
        kwargs=body.chat_template_kwargs,
        reasoning_effort=fields.reasoning["effort"],
        enable_thinking=body.enable_thinking,
    )
    options = template_options(request.model, given)
    return PromptMaker(request, tools, options, may_lose_images=fields.truncates)


def _make_prompt(
    request: Preparation[ResponsesRequest],
    maker: PromptMaker,
    history: History,
    budget: TokenBudget,
) -> tuple[Prompt, Sequence[ImageSource], Sequence[str]]:
    """Makes the prompt, in time in proportion to the history, and returns it with the images and
    the warnings of all messages. Raises RequestError."""
    model = request.model
    messages, images, warnings = to_messages(
        history.items,
        request.body.instructions,
        num_earlier=len(history.items) - len(history.input),
        images=images_of_request(model.images, may_drop=maker.may_lose_images),
    )
    if not history.items:
        messages.append({"role": "user", "content": ""})
    make = partial(maker.make, num_images=len(images))
    if not maker.may_lose_images:
        return make(messages), images, warnings
    return fitting(messages, make, _longest_prompt(model, budget)), images, warnings


def _tools(body: ResponsesRequest, dialect: Dialect) -> ToolUse:
    is_parallel = body.parallel_tool_calls if body.max_tool_calls != 1 else False
    skips_others = dialect.responses.skips_unknown_types
    return read_tools(
        body.tools, body.tool_choice, is_parallel, dialect, flat=True, skips_others=skips_others
    )


def _budget(request: Preparation[ResponsesRequest], fields: ResponseFields) -> TokenBudget:
    requested, most = request.body.max_output_tokens, request.model.info.max_model_len
    if requested is not None and requested > most:
        name = request.names.max_tokens
        raise InvalidField(
            f"{name} must be at most the context length of {most} tokens, not {requested}",
            param=name,
        )
    default = None
    if fields.background:  # nobody need be there to stop it
        limits = request.config.max_background_tokens, request.model.info.defaults.max_new_tokens
        default = min(filter(None, limits), default=None)
    return token_budget(request, requested, default, may_reach_limit=True)


def _longest_prompt(model: ServedModel, budget: TokenBudget) -> int:
    """Returns how many tokens are left for the prompt where older messages may be dropped. An
    answer that can be cut takes no more than half of the context: agents ask for as much as there
    is."""
    context = model.info.max_model_len
    if budget.max_tokens is not None and not budget.may_be_cut:
        return context - budget.max_tokens
    if budget.requested is None:
        return context - context // _USUAL_ANSWER_SHARE
    return context - min(budget.requested, context // 2)


def _is_unfinished(items: Sequence[Item]) -> bool:
    """Returns whether the model has to go on with what it was saying."""
    last = items[-1] if items else {}
    return last.get("role") == "assistant" and last.get("status") in ("in_progress", "incomplete")
