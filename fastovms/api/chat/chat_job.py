"""Checks every field of a chat request, says what `echo` repeats, and makes what runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET

from fastovms.api.chat.call_forms import CallForms
from fastovms.api.chat.chat_body import ChatPromptReport
from fastovms.api.chat.message_form import ChatMessageForm
from fastovms.api.conversation.chat_grammar import constraint
from fastovms.api.conversation.chat_messages import Message, read_messages
from fastovms.api.conversation.chat_prompt import (
    PromptMaker,
    TemplateFields,
    TemplateOptions,
    template_options,
)
from fastovms.api.conversation.chat_task import (
    ReadChat,
    chat_task,
    finds_markup,
    hides_content,
    parser_maker,
)
from fastovms.api.conversation.chat_tools import ToolUse, read_functions, read_tools
from fastovms.api.conversation.shown_pieces import ShownPieces
from fastovms.api.generation.alignment import ContentTokens, TokenAligner
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.request.candidates import check_num_choices
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
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import ChatRequest
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.text.scanning.output import OutputParser


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A chat request that is ready to run.

    Attributes:
        form: how the answer is told.
        warnings: what of the request is not done.
        new_parser: makes the parser of one sample's text.
    """

    preparation: Preparation[ChatRequest]
    options: GenerationOptions
    task: PromptTask
    prompt: Prompt
    form: ChatMessageForm
    warnings: Sequence[str]
    new_parser: Callable[[], OutputParser]

    def prompt_report(self, generation: TextGeneration) -> ChatPromptReport:
        """Returns what the answer tells about its prompt.

        Args:
            generation: the prompt's; its log probabilities are known when it has run.
        """
        report, body = self.options.report, self.preparation.body
        return ChatPromptReport(
            None if report.num_prompt_logprobs is None else generation.prompt_logprobs[0],
            self.task.token_ids if report.has_token_ids else None,
            self.prompt.text if body.return_prompt_text else None,
        )


async def prepare(request: Preparation[ChatRequest], new_call_id: Callable[[], str]) -> ChatJob:
    """Checks a request and makes what runs it. Long chats are rendered and encoded in a thread.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    body, model = request.body, request.model
    check_numbers(request)
    _check_modalities(body)
    report = token_report(request, _top_logprobs(body))
    options = generation_options(request, report, _budget(request))
    check_num_choices(options.candidates, request.config)
    template = template_options(model, _template_fields(body))

    def read() -> tuple[ReadChat, Message]:
        messages, images, unseen = read_messages(
            body.messages, request.dialect, images_of_request(model.images)
        )
        tools = _tools(body, request.dialect)
        maker = PromptMaker(request, tools, template, options.truncation)
        prompt = maker.make(messages, len(images))
        wanted = constraint(request, tools, prompt.end, template)
        return ReadChat(prompt, tools, images, wanted, unseen), messages[-1]

    chat, last = await offload.run(read, request.size)
    form = _form(request, options, chat.tools, template, last, new_call_id)
    if form.shown.hides_reasoning:
        # The tokens' ids would reveal the reasoning that the client asked to hide.
        report = replace(report, has_token_ids=False)
        options = replace(options, report=report)
    task = await chat_task(request, options, chat, report.num_prompt_logprobs)
    new_parser = parser_maker(request, options, chat)
    of_tools = chat.tools.warnings_for(request.model.chat.tool_format)
    warnings = [*chat.warnings, *of_tools, *chat.prompt.warnings]
    return ChatJob(request, options, task, chat.prompt, form, warnings, new_parser)


def names_of(body: ChatRequest) -> FieldNames:
    """Returns what a chat's request calls its fields."""
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    logprobs = "top_logprobs" if body.top_logprobs else "logprobs"
    return FieldNames(prompt="messages", max_tokens=limit, logprobs=logprobs)


def _tools(body: ChatRequest, dialect: Dialect) -> ToolUse:
    """Reads the tools, or the functions that OpenAI had before them."""
    given = (body.functions, body.function_call)
    if given == (None, None):
        return read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, dialect)
    name = "functions" if body.functions is not None else "function_call"
    if body.tools is not None or body.tool_choice is not None:
        raise InvalidField(f"{name} cannot be used with tools or tool_choice", param=name)
    return read_functions(*given, dialect)


def _check_modalities(body: ChatRequest) -> None:
    for position, modality in enumerate(body.modalities or ()):
        if modality != "text":
            name = f"modalities[{position}]"
            raise InvalidField(
                f'{name} must be "text", which is all that this model makes, not {show(modality)}',
                param=name,
            )


def _top_logprobs(body: ChatRequest) -> int | None:
    """Returns how many alternatives are told of each token; None = nothing is told of the
    tokens."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField(
            "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
        )
    return None


def _budget(request: Preparation[ChatRequest]) -> TokenBudget:
    body = request.body
    if body.max_completion_tokens is not None:
        return token_budget(request, body.max_completion_tokens, may_reach_limit=True)
    requested = None if body.max_tokens is UNSET else body.max_tokens
    if requested == 0:
        raise InvalidField("max_tokens must be at least 1, not 0", param="max_tokens")
    return token_budget(request, requested)


def _template_fields(body: ChatRequest) -> TemplateFields:
    return TemplateFields(
        body.add_generation_prompt,
        body.continue_final_message,
        body.documents,
        body.chat_template,
        body.chat_template_kwargs,
        body.reasoning_effort,
        body.enable_thinking,
    )


def _form(
    request: Preparation[ChatRequest],
    options: GenerationOptions,
    tools: ToolUse,
    template: TemplateOptions,
    last: Message,
    new_call_id: Callable[[], str],
) -> ChatMessageForm:
    """Returns how the answer is told.

    Args:
        last: the last of the messages.
    """
    body, chat = request.body, request.model.chat
    continues = request.dialect.continues_roles and not template.add_generation_prompt
    role = last["role"] if continues else chat.config.response_role
    return ChatMessageForm(
        role=role,
        prefix=(last["content"] or "") if body.echo and last["role"] == role else "",
        shown=ShownPieces(
            hides_reasoning=body.include_reasoning is False and chat.reasoning_format is not None,
            hides_content=hides_content(request, options, tools),
            one_call=not tools.is_parallel,
        ),
        is_named=tools.is_named,
        drops_cut_call=tools.is_required,
        may_call=bool(tools.tools),
        calls=CallForms(tools.target, new_call_id, tools.is_legacy),
        new_content_tokens=_content_tokens_maker(request, options, tools),
    )


def _content_tokens_maker(
    request: Preparation[ChatRequest], options: GenerationOptions, tools: ToolUse
) -> Callable[[], ContentTokens]:
    """Returns what makes the finder of one sample's tokens of content."""
    if not finds_markup(request, options, tools):
        return partial(ContentTokens, None)
    tags = request.model.chat.tags
    return lambda: ContentTokens(TokenAligner(tags))
