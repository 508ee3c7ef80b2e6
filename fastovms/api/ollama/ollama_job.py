"""Checks every field of a request that is answered through the model's template, and makes what
runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from fastovms.api.conversation.chat_grammar import constraint
from fastovms.api.conversation.chat_messages import ChatMessages, Message
from fastovms.api.conversation.chat_prompt import PromptMaker, template_options
from fastovms.api.conversation.chat_task import ReadChat, chat_task, parser_maker
from fastovms.api.conversation.chat_tools import ToolUse, read_tools
from fastovms.api.conversation.dropped_messages import fitting
from fastovms.api.ollama.asking import Asking
from fastovms.api.ollama.ollama_messages import add_images, read_ollama_messages
from fastovms.api.ollama.ollama_schema import (
    AskedFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
)
from fastovms.api.ollama.thinking import thinking_fields
from fastovms.api.request.generation_options import (
    GenerationOptions,
    check_numbers,
    generation_options,
)
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompt_images import kept_images
from fastovms.api.request.prompting.prompt_task import PromptTask
from fastovms.api.request.prompting.prompts import Prompt, check_token_range, context_exceeded
from fastovms.api.request.tokens.token_budget import token_budget
from fastovms.api.request.tokens.token_report import token_report
from fastovms.api.serving.images import images_of_request
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.media.loader import GivenImages, ImageSource
from fastovms.text.scanning.output import OutputParser

_ANSWER_SHARE = 8
"""One part in so many of the context is kept free for an answer of no stated length."""


@dataclass(frozen=True, slots=True)
class OllamaJob:
    """A request that is ready to run.

    Attributes:
        new_parser: makes the parser of the answer's text; None = it is all content.
        tells_context: whether the answer ends with the tokens of the prompt and its own.
        warnings: what of the request is not done.
    """

    preparation: Preparation[AskedFields]
    options: GenerationOptions
    task: PromptTask
    new_parser: Callable[[], OutputParser] | None
    tells_context: bool
    warnings: Sequence[str]


class _Chat(NamedTuple):
    """What a request wants answered.

    Attributes:
        read: returns the messages, in time proportional to them.
        context: tokens that stand before the prompt.
    """

    read: Callable[[], ChatMessages]
    tools: ToolUse = ToolUse()
    context: Sequence[int] = ()
    tells_context: bool = False


async def prepare_chat(asking: Asking, body: OllamaChatRequest) -> OllamaJob:
    """Checks a request to `/api/chat`. Long chats are rendered and encoded in a thread.

    Raises:
        RequestError: a field is at fault.
        BackendError: the grammar cannot be compiled now.
    """
    request = asking.preparation
    model, dialect, given = request.model, request.dialect, body.messages or []
    tools = [{"type": "function", **tool} for tool in body.tools or ()]
    if tools and model.chat.tool_format is None:
        name = show(asking.model_name)
        raise InvalidField(f"tools: {name} does not support tools", param="tools")
    read = partial(read_ollama_messages, given, dialect, _images_of(asking))
    return await _prepare(asking, _Chat(read, read_tools(tools, None, None, dialect)))


async def prepare_prompt(asking: Asking, body: OllamaGenerateRequest) -> OllamaJob:
    """Checks a request to `/api/generate` whose prompt is what a user says. Raises as
    `prepare_chat` does."""
    model, context = asking.preparation.model, body.context or []
    if context and model.images is not None:
        raise InvalidField("context cannot be used with a model that takes images", param="context")
    check_token_range(context, "context", model.info)
    read = partial(_prompt_messages, body, _images_of(asking))
    return await _prepare(asking, _Chat(read, context=context, tells_context=model.images is None))


def common_options(asking: Asking) -> GenerationOptions:
    """Reads what says how a text is generated. Raises InvalidField."""
    request = asking.preparation
    check_numbers(request)
    report = replace(token_report(request, asking.top_logprobs), has_timings=True)
    budget = token_budget(request, asking.num_predict, may_reach_limit=True)
    return generation_options(request, report, budget)


async def _prepare(asking: Asking, chat: _Chat) -> OllamaJob:
    request = asking.preparation
    model = request.model
    options = common_options(asking)
    fields = thinking_fields(
        asking.body.think, asking.model_name, can_think=model.chat.reasoning_format is not None
    )
    drops = _drops(asking)

    def read() -> ReadChat:
        messages, images, unseen = chat.read()
        template = template_options(
            model, fields._replace(continue_final_message=_is_begun(messages[-1]))
        )
        maker = PromptMaker(request, chat.tools, template, may_lose_images=drops)
        make = partial(maker.make, num_images=len(images))
        if drops:
            room = _longest_prompt(model, asking.num_predict) - len(chat.context)
            prompt = fitting(messages, make, room)
        else:
            prompt = make(messages)
        wanted = constraint(request, chat.tools, prompt.end, template)
        prompt = _behind(chat.context, prompt, request)
        sources: Sequence[ImageSource] = images
        if images and drops:
            prompt, sources = kept_images(prompt, images)
        return ReadChat(prompt, chat.tools, sources, wanted, unseen)

    ready = await offload.run(read, request.size)
    task = await chat_task(request, options, ready)
    of_tools = chat.tools.warnings_for(model.chat.tool_format)
    warnings = [*asking.warnings, *ready.warnings, *of_tools, *ready.prompt.warnings]
    new_parser = parser_maker(request, options, ready)
    return OllamaJob(request, options, task, new_parser, chat.tells_context, warnings)


def _drops(asking: Asking) -> bool:
    """Returns whether messages are dropped that the context has no room for."""
    return asking.body.truncate is not False


def _images_of(asking: Asking) -> GivenImages | None:
    return images_of_request(asking.preparation.model.images, may_drop=_drops(asking))


def _prompt_messages(body: OllamaGenerateRequest, images: GivenImages | None) -> ChatMessages:
    """Returns the messages that `/api/generate` has answered."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    said: Message = {"role": "user", "content": body.prompt or ""}
    add_images(said, body.images or (), "images", images)
    return ChatMessages([*messages, said], () if images is None else images.sources)


def _is_begun(last: Message) -> bool:
    """Returns whether the model has to go on with what it was saying."""
    return last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")


def _longest_prompt(model: ServedModel, num_predict: int | None) -> int:
    """Returns how many tokens older messages may take. An answer that can be cut takes no more than
    half of the context."""
    context = model.info.max_model_len
    if num_predict is None:
        return context - context // _ANSWER_SHARE
    return context - min(num_predict, context // 2)


def _behind(context: Sequence[int], prompt: Prompt, request: Preparation[AskedFields]) -> Prompt:
    """Returns the prompt behind the tokens of what was said before."""
    token_ids = [*context, *prompt.token_ids]
    if context and len(token_ids) > request.model.info.max_model_len:
        reason = f"the prompt has {len(token_ids)} tokens, of which context has {len(context)}"
        raise context_exceeded(reason, request.model.info, "context")
    return replace(prompt, token_ids=token_ids) if context else prompt
