"""What a responses request asks for, checked in every respect and ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from fastovms.api.conversation.chat_grammar import Constraint, constraint, usable
from fastovms.api.conversation.chat_messages import Message
from fastovms.api.conversation.chat_parser import parser_maker
from fastovms.api.conversation.chat_prompt import (
    TemplateOptions,
    encode_prompt,
    render_prompt,
    template_options,
)
from fastovms.api.conversation.chat_tools import ToolUse, read_tools
from fastovms.api.request import offload
from fastovms.api.request.generation_request import (
    Terms,
    check_num_choices,
    check_numbers,
    make_tasks,
    terms,
)
from fastovms.api.request.prompt_images import kept_images, tags_named, with_images
from fastovms.api.request.prompt_task import PromptTask
from fastovms.api.request.prompts import Prompt, Truncation
from fastovms.api.request.sampling import num_logprobs
from fastovms.api.request.token_budget import TokenBudget, token_budget
from fastovms.api.request.token_report import token_report
from fastovms.api.responses.input.input_items import Item
from fastovms.api.responses.input.items_to_messages import to_messages
from fastovms.api.responses.input.response_fields import Fields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.input.truncation import fitting
from fastovms.api.responses.stored.history import History
from fastovms.api.serving.images import uncounted
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField, RequestError
from fastovms.media.loader import ImageSource
from fastovms.text.scanning.output import OutputParser

_USUAL_ANSWER_SHARE: Final = 8
"""Where older messages may be dropped, one part in so many of the context is kept free for an
answer of no stated length."""

_CHAT_NAMES: Final = {
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of chats that stand for fields of responses."""


@dataclass(frozen=True, slots=True)
class ResponsesJob:
    """
    Attributes:
        new_parser: makes the parser of one sample's text.
        warnings: what of the request is passed over.
    """

    terms: Terms
    task: PromptTask
    tools: ToolUse
    new_parser: Callable[[], OutputParser]
    warnings: Sequence[str]


async def prepare(
    body: ResponsesRequest,
    fields: Fields,
    history: History,
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
    *,
    client: str,
) -> ResponsesJob:
    """Long contexts are rendered and encoded in a thread.

    Args:
        client: who asks.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    if fields.response_format is not None:
        body = msgspec.structs.replace(body, response_format=fields.response_format)
    names = _own_names(has_format=fields.response_format is not None)
    with _named_as_responses(names):
        check_numbers(body, dialect)
        top_logprobs = num_logprobs(body.top_logprobs, "top_logprobs", config) or 0
        report = token_report(
            body, top_logprobs if fields.logprobs else None, "top_logprobs", model, config
        )
        budget = _budget(body, model, dialect)
        asked = terms(body, budget, report, model, dialect, config)
        check_num_choices(1, asked.candidates, config)
        warnings: list[str] = []
        tools = _tools(body, dialect, warnings)
        options = _template_options(body, fields, history, model)
        images: list[ImageSource] = []
        make = _prompt_maker(
            body, fields, history, tools, options, model, budget, asked.truncation, images
        )

        def read() -> tuple[Prompt, Constraint | None]:
            with tags_named(body):
                prompt = make()
            wanted = constraint(body, tools, prompt.text or "", options, model, config)
            return prompt, None if wanted is None else _renamed(wanted, names)

        prompt, wanted = await offload.run(read, history.size)
        [task] = await make_tasks(
            body,
            asked,
            [prompt.token_ids],
            ["input"],
            model,
            dialect,
            config,
            grammar=await usable(wanted, model, config, client),
            echo=False,
            num_prompt_logprobs=None,
        )
        if fields.truncates and images:
            prompt, images = kept_images(prompt, images)
        task = await with_images(
            task,
            prompt,
            images,
            model.images,
            asked.truncation,
            name="input",
            stop_strings=asked.stopping.strings,
        )
    new_parser = parser_maker(asked, tools, prompt.text or "", model, dialect)
    return ResponsesJob(asked, task, tools, new_parser, warnings)


async def count_tokens(
    body: ResponsesRequest,
    fields: Fields,
    history: History,
    model: ServedModel,
    dialect: Dialect,
) -> int:
    """Of the prompt that `prepare` would make. Raises RequestError."""
    with _named_as_responses(_own_names(has_format=False)):
        tools = _tools(body, dialect, [])
        options = _template_options(body, fields, history, model)
        budget = TokenBudget(None, None)
        images: list[ImageSource] = []
        make = _prompt_maker(body, fields, history, tools, options, model, budget, None, images)
        prompt = await offload.run(make, history.size)
    if images:
        raise uncounted(images[0])
    return len(prompt.token_ids)


def _prompt_maker(
    body: ResponsesRequest,
    fields: Fields,
    history: History,
    tools: ToolUse,
    options: TemplateOptions,
    model: ServedModel,
    budget: TokenBudget,
    truncation: Truncation | None,
    images: list[ImageSource],
) -> Callable[[], Prompt]:
    """What makes the prompt, in time in proportion to the history. It raises RequestError.

    Args:
        images: those of the history are added to it.
    """

    def encode(messages: Sequence[Message]) -> Prompt:
        text = render_prompt(messages, tools.shown, options, model)
        special = body.add_special_tokens is True
        return encode_prompt(
            text,
            model,
            truncation,
            add_special_tokens=special,
            num_images=len(images),
            loses_images=fields.truncates,
        )

    def render() -> Prompt:
        messages = to_messages(
            history.items,
            body.instructions,
            num_earlier=len(history.items) - len(history.input),
            images=None if model.images is None else images,
        )
        if not history.items:
            messages.append({"role": "user", "content": ""})
        if not fields.truncates:
            return encode(messages)
        return fitting(messages, encode, _longest_prompt(model, budget))

    return render


def _template_options(
    body: ResponsesRequest, fields: Fields, history: History, model: ServedModel
) -> TemplateOptions:
    return template_options(
        model,
        add_generation_prompt=None,
        continue_final_message=_is_unfinished(history.items),
        kwargs=body.chat_template_kwargs,
        reasoning_effort=fields.reasoning["effort"],
        enable_thinking=body.enable_thinking,
    )


def _tools(body: ResponsesRequest, dialect: Dialect, warnings: list[str]) -> ToolUse:
    # "auto" says nothing that its absence does not.
    choice = None if body.tool_choice == "auto" else body.tool_choice
    skipped = warnings if dialect.responses.skips_unknown_types else None
    is_parallel = body.parallel_tool_calls if body.max_tool_calls != 1 else False
    return read_tools(body.tools, choice, is_parallel, dialect, flat=True, skipped=skipped)


def _budget(body: ResponsesRequest, model: ServedModel, dialect: Dialect) -> TokenBudget:
    name = "max_output_tokens"
    requested = body.max_output_tokens
    if requested is not None and requested > model.info.max_model_len:
        raise InvalidField(
            f"{name} must be at most the context length of {model.info.max_model_len} tokens, not "
            f"{requested}",
            param=name,
        )
    return token_budget(requested, model, dialect, name=name, default=None, may_reach_limit=True)


def _longest_prompt(model: ServedModel, budget: TokenBudget) -> int:
    """What is left for the prompt where older messages may be dropped. An answer that can be cut
    takes no more than half of the context: agents ask for as much as there is."""
    context = model.info.max_model_len
    if budget.max_tokens is not None and not budget.may_be_cut:
        return context - budget.max_tokens
    if budget.requested is None:
        return context - context // _USUAL_ANSWER_SHARE
    return context - min(budget.requested, context // 2)


def _is_unfinished(items: Sequence[Item]) -> bool:
    """Whether the model has to go on with what it was saying."""
    last = items[-1] if items else {}
    return last.get("role") == "assistant" and last.get("status") in ("in_progress", "incomplete")


def _own_names(*, has_format: bool) -> Mapping[str, str]:
    """
    Args:
        has_format: the format is that of `text.format`.
    """
    return {
        chat_name: name
        for chat_name, name in _CHAT_NAMES.items()
        if has_format or not name.startswith("text")
    }


@contextmanager
def _named_as_responses(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that name a field of chats name the one that stands for it here."""
    try:
        yield
    except RequestError as error:
        for chat_name, name in names.items():
            param = error.param or ""
            if param.startswith(chat_name) or error.message.startswith(chat_name):
                if param.startswith(chat_name):
                    param = name + param.removeprefix(chat_name)
                message = error.message.replace(chat_name, name)
                raise type(error)(message, param=param or None, code=error.code) from None
        raise


def _renamed(wanted: Constraint, names: Mapping[str, str]) -> Constraint:
    """The same for what is only found out while the answer is generated: the grammar brings the
    name along."""
    grammar = wanted.grammar
    for chat_name, name in names.items():
        if grammar.param.startswith(chat_name):
            param = name + grammar.param.removeprefix(chat_name)
            return wanted._replace(grammar=replace(grammar, param=param))
    return wanted
