"""Reads the fields that only the Responses API has, and counts prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fastovms.api.chat_tools import ToolUse, read_tools
from fastovms.api.client_request import ClientRequest, FieldNames
from fastovms.api.client_tools import openai_tool
from fastovms.api.dialect import Dialect
from fastovms.api.fields import TokenBudget, TokenReport, num_logprobs, token_budget, token_report
from fastovms.api.image_parts import ImageSource, image_tokens_unknown, images_of_request
from fastovms.api.prepare import ModelInput, RequestReader, prepare
from fastovms.api.prompt import Chat, Prompt, TemplateFields, chat_prompt, template_options
from fastovms.api.served import ServedModel
from fastovms.errors import CONTEXT_EXCEEDED, InvalidField
from fastovms.http.messages import Caller
from fastovms.params import LOWEST_PRIORITY
from fastovms.parts.responses.history import History
from fastovms.parts.responses.input import Item, to_messages
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest

ResponsesJob = ModelInput[ResponsesRequest]
_USUAL_ANSWER_SHARE: Final = 8
"""If older messages may be dropped and the length of the answer is not given, 1 / this number of
the context is reserved for the answer."""


@dataclass(frozen=True, slots=True)
class ResponsesReader(RequestReader[ResponsesRequest]):
    """Reads the fields that only requests of the Responses API have.

    Attributes:
        fields: the checked options.
        history: the items of the model's input.
        prompt: the prompt of a resumed request, without images; None = render the history.
    """

    fields: ResponseFields
    history: History
    prompt: Prompt | None = None

    def report(self) -> TokenReport:
        body = self.asked.body
        top_logprobs = num_logprobs(body.top_logprobs, "top_logprobs", self.asked.config) or 0
        report = token_report(self.asked, top_logprobs if self.fields.logprobs else None)
        return replace(report, has_timings=True) if self.fields.reports_metrics else report

    def budget(self) -> TokenBudget:
        asked, most = self.asked, self.asked.model.info.max_model_len
        requested = asked.body.max_output_tokens
        if requested is not None and requested > most:
            name = asked.names.max_tokens
            raise InvalidField.about(
                name, f"must be at most the context length of {most} tokens, not {requested}"
            )
        default = None
        if self.fields.background:  # no client may be connected to stop the generation
            limits = asked.config.max_background_tokens, asked.model.info.defaults.max_new_tokens
            default = min(filter(None, limits), default=None)
        return token_budget(asked, requested, default, may_reach_limit=True)

    def read(self, budget: TokenBudget) -> Chat:
        """Returns the history as a chat, without the oldest items if the client allows dropping
        them."""
        model, body, history = self.asked.model, self.asked.body, self.history
        tools = _tools(body, self.asked.dialect)
        options = template_options(
            model,
            TemplateFields(
                continue_final_message=_is_unfinished(history.items),
                kwargs=body.chat_template_kwargs,
                reasoning_effort=self.fields.reasoning["effort"],
                enable_thinking=body.enable_thinking,
            ),
        )
        if self.prompt is not None:
            return Chat((), tools=tools, options=options, prompt=self.prompt)
        truncates = self.fields.truncates
        found = to_messages(
            history.items,
            body.instructions,
            num_earlier=len(history.items) - len(history.input),
            images=images_of_request(model.images, may_drop=truncates),
        )
        if not history.items:
            found.messages.append({"role": "user", "content": ""})
        most = _longest_prompt(model, budget) if truncates else None
        return Chat(*found, tools, options, max_prompt_tokens=most)


async def prepare_response(
    asked: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    kept_prompt: Prompt | None = None,
) -> ResponsesJob:
    """Returns the model's input for a request; see `prepare`. `kept_prompt` is the prompt of a
    resumed request, without images; None = render the history."""
    if fields.response_format is not None:
        names = replace(asked.names, response_format="text.format", json_schema="text.format")
        asked = replace(asked, names=names, text_format=fields.response_format)
    asked = replace(asked, size=history.size)
    given = await prepare(ResponsesReader(asked, fields, history, kept_prompt))
    if not fields.caching.prewarms:
        return given
    [request] = given.requests
    params = replace(request.params, max_tokens=1, grammar=None)
    return replace(given, requests=[replace(request, params=params)])


async def _prompt_of(
    asked: ClientRequest[ResponsesRequest], fields: ResponseFields, history: History
) -> tuple[Prompt, Sequence[ImageSource]]:
    """Returns the prompt and the images of a request. Raises RequestError if a field is invalid."""
    reader = ResponsesReader(asked, fields, history)
    make = lambda: chat_prompt(asked, reader.read(TokenBudget(None, None)))  # noqa: E731
    return await asked.model.chat.rendered(asked.client, make, history.size)


async def count_tokens(
    asked: ClientRequest[ResponsesRequest], fields: ResponseFields, history: History
) -> int:
    """Returns the number of prompt tokens of a request. Raises RequestError if a field is
    invalid."""
    prompt, images = await _prompt_of(asked, fields, history)
    if images:
        raise image_tokens_unknown(images[0])
    return len(prompt.token_ids)


async def is_longer(
    asked: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    num_tokens: int,
) -> bool:
    """Returns whether the whole prompt of a request has more than `num_tokens` tokens, not counting
    those of images. Raises RequestError if a field is invalid."""
    try:
        prompt, _ = await _prompt_of(asked, replace(fields, truncates=False), history)
    except InvalidField as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return True
    return len(prompt.token_ids) > num_tokens


def names_of(body: ResponsesRequest) -> FieldNames:
    """Returns the client's names of a request's fields, without `text.format`."""
    return FieldNames("input", "max_output_tokens", "top_logprobs")


def ranked(caller: Caller, fields: ResponseFields) -> Caller:
    """Returns the caller with the lowest priority if the response may wait for hours, unless the
    server has set another priority."""
    waits = fields.may_wait and caller.priority is None
    return replace(caller, priority=LOWEST_PRIORITY) if waits else caller


def _tools(body: ResponsesRequest, dialect: Dialect) -> ToolUse:
    is_parallel = body.parallel_tool_calls if body.max_tool_calls != 1 else False
    return read_tools(
        body.tools,
        body.tool_choice,
        is_parallel,
        dialect,
        flat=True,
        skips_others=dialect.responses.skips_unknown_types,
        read_other=openai_tool,
    )


def _longest_prompt(model: ServedModel, budget: TokenBudget) -> int:
    """Returns the maximum number of prompt tokens if older messages may be dropped. At most half of
    the context is reserved for the answer, because agents often request a very high limit."""
    context = model.info.max_model_len
    if budget.max_tokens is not None and not budget.may_be_cut:
        return context - budget.max_tokens
    if budget.requested is None:
        return context - context // _USUAL_ANSWER_SHARE
    return context - min(budget.requested, context // 2)


def _is_unfinished(items: Sequence[Item]) -> bool:
    """Returns whether the last item is an incomplete message of the model, which the answer
    continues."""
    last = items[-1] if items else {}
    return last.get("role") == "assistant" and last.get("status") in ("in_progress", "incomplete")
