"""What a chat request asks for, checked in every respect and ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import UNSET

from fastovms.api.chat.chat_format import MessageForm, PromptReport
from fastovms.api.conversation.chat_grammar import Constraint, constraint, usable
from fastovms.api.conversation.chat_messages import Message, read_messages
from fastovms.api.conversation.chat_parser import parser_maker
from fastovms.api.conversation.chat_prompt import (
    TemplateOptions,
    encode_prompt,
    render_prompt,
    template_options,
)
from fastovms.api.conversation.chat_tools import ToolUse, read_tools
from fastovms.api.generation.generate import TextGeneration
from fastovms.api.request import offload
from fastovms.api.request.generation_request import (
    Terms,
    check_num_choices,
    check_numbers,
    make_tasks,
    terms,
)
from fastovms.api.request.prompt_images import tags_named, with_images
from fastovms.api.request.prompt_task import PromptTask
from fastovms.api.request.prompts import Prompt
from fastovms.api.request.token_budget import TokenBudget, token_budget
from fastovms.api.request.token_report import token_report
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.request_schemas import ChatRequest
from fastovms.config import ApiConfig
from fastovms.errors import InvalidField
from fastovms.media.loader import ImageSource
from fastovms.text.scanning.output import OutputParser


@dataclass(frozen=True, slots=True)
class ChatJob:
    """
    Attributes:
        form: how the answer is told.
        new_parser: makes the parser of one sample's text.
    """

    terms: Terms
    task: PromptTask
    prompt: Prompt
    form: MessageForm
    new_parser: Callable[[], OutputParser]
    returns_prompt_text: bool

    def prompt_report(self, generation: TextGeneration) -> PromptReport:
        """Args: generation: of the prompt; its log probabilities are known when it has run."""
        report = self.terms.report
        return PromptReport(
            None if report.num_prompt_logprobs is None else generation.prompt_logprobs[0],
            self.task.token_ids if report.has_token_ids else None,
            self.prompt.text if self.returns_prompt_text else None,
        )


async def prepare(
    body: ChatRequest,
    size: int,
    model: ServedModel,
    dialect: Dialect,
    config: ApiConfig,
    *,
    client: str,
    new_call_id: Callable[[], str],
) -> ChatJob:
    """Long chats are rendered and encoded in a thread.

    Args:
        size: of the body, in bytes.
        client: who asks.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    check_numbers(body, dialect)
    _check_modalities(body)
    report = token_report(body, _top_logprobs(body), "top_logprobs", model, config)
    asked = terms(body, _budget(body, model, dialect), report, model, dialect, config)
    check_num_choices(1, asked.candidates, config)
    options = _template_options(body, model)
    images: list[ImageSource] = []

    def read() -> tuple[list[Message], ToolUse, Prompt, Constraint | None]:
        messages = read_messages(body.messages, dialect, None if model.images is None else images)
        tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls, dialect)
        text = render_prompt(messages, tools.shown, options, model)
        special = body.add_special_tokens is True
        with tags_named(body):
            prompt = encode_prompt(
                text, model, asked.truncation, add_special_tokens=special, num_images=len(images)
            )
        return messages, tools, prompt, constraint(body, tools, text, options, model, config)

    messages, tools, prompt, wanted = await offload.run(read, size)
    form = _form(body, messages, tools, options, model, dialect, new_call_id)
    if form.hides_reasoning:
        # What was thought could be read in them.
        report = replace(report, num_logprobs=None, has_token_ids=False)
        asked = replace(asked, report=report)
    [task] = await make_tasks(
        body,
        asked,
        [prompt.token_ids],
        ["messages"],
        model,
        dialect,
        config,
        grammar=await usable(wanted, model, config, client),
        echo=False,
        num_prompt_logprobs=report.num_prompt_logprobs,
    )
    task = await with_images(
        task,
        prompt,
        images,
        model.images,
        asked.truncation,
        name="messages",
        stop_strings=asked.stopping.strings,
    )
    new_parser = parser_maker(asked, tools, prompt.text or "", model, dialect)
    return ChatJob(asked, task, prompt, form, new_parser, body.return_prompt_text is True)


def _check_modalities(body: ChatRequest) -> None:
    for position, modality in enumerate(body.modalities or ()):
        if modality != "text":
            name = f"modalities[{position}]"
            raise InvalidField(
                f'{name} must be "text", which is all that this model makes, not {show(modality)}',
                param=name,
            )


def _top_logprobs(body: ChatRequest) -> int | None:
    """How many alternatives are told of each token; None = nothing is told of the tokens."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField(
            "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
        )
    return None


def _budget(body: ChatRequest, model: ServedModel, dialect: Dialect) -> TokenBudget:
    if body.max_completion_tokens is not None:
        return token_budget(
            body.max_completion_tokens,
            model,
            dialect,
            name="max_completion_tokens",
            default=None,
            may_reach_limit=True,
        )
    requested = None if body.max_tokens is UNSET else body.max_tokens
    if requested == 0:
        raise InvalidField("max_tokens must be at least 1, not 0", param="max_tokens")
    return token_budget(requested, model, dialect, name="max_tokens", default=None)


def _template_options(body: ChatRequest, model: ServedModel) -> TemplateOptions:
    return template_options(
        model,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        source=body.chat_template,
        kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning_effort,
        enable_thinking=body.enable_thinking,
    )


def _form(
    body: ChatRequest,
    messages: list[Message],
    tools: ToolUse,
    options: TemplateOptions,
    model: ServedModel,
    dialect: Dialect,
    new_call_id: Callable[[], str],
) -> MessageForm:
    last = messages[-1]
    continues = dialect.continues_roles and not options.add_generation_prompt
    role = last["role"] if continues else model.chat.config.response_role
    return MessageForm(
        role=role,
        prefix=(last["content"] or "") if body.echo and last["role"] == role else "",
        hides_reasoning=body.include_reasoning is False and model.chat.reasoning_format is not None,
        hides_content=tools.is_required,
        one_call=not tools.is_parallel,
        is_named=tools.is_named,
        drops_cut_call=tools.is_required,
        new_call_id=new_call_id,
    )
