"""Turns a chat into a prompt: template options, reasoning, token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from fastovms.api.body import wrong
from fastovms.api.chat_messages import Message
from fastovms.api.chat_tools import ToolUse
from fastovms.api.client_request import ClientRequest
from fastovms.api.image_parts import check_tags, without_tags
from fastovms.api.prepare import tags_named
from fastovms.api.prompt import Prompt, PromptEncoder, Truncation, check_text, context_exceeded
from fastovms.api.request_schemas import GenerationFields
from fastovms.api.served import ServedModel
from fastovms.errors import FieldFault, InvalidField
from fastovms.text.output import leaves_reasoning_open
from fastovms.text.scanning import Content, Piece, Reasoning
from fastovms.text.template import CallWriting
from fastovms.text.told_tools import tell_tools, written_call

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The chat template's variables from a request.

    Attributes:
        kwargs: further variables of the template.
        source: a template that replaces the model's.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: Sequence[Mapping[str, Any]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


class TemplateFields(NamedTuple):
    """The request fields that affect the chat template, as the client has sent them."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    source: str | None = None
    kwargs: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None


def template_options(model: ServedModel, given: TemplateFields) -> TemplateOptions:
    """Reads the variables for the template. The request's values override the operator's defaults,
    and its `chat_template_kwargs` override its other fields. An effort switches thinking on or off,
    as in vLLM. Raises InvalidField if a field is wrong."""
    source, add_generation_prompt = given.source, given.add_generation_prompt
    reasoning_effort = given.reasoning_effort
    config = model.chat.config
    if source is not None and not config.trust_request_chat_template:
        raise InvalidField(
            "chat_template is not allowed: this server does not trust templates from requests",
            param="chat_template",
        )
    if reasoning_effort is not None and reasoning_effort not in _EFFORTS:
        raise wrong("reasoning_effort", f"one of {', '.join(_EFFORTS)}", reasoning_effort)
    chosen: dict[str, Any] = {}
    if reasoning_effort is not None:
        chosen = {"reasoning_effort": reasoning_effort}
        chosen["enable_thinking"] = reasoning_effort != "none"
    if given.enable_thinking is not None:
        chosen["enable_thinking"] = given.enable_thinking
    variables = {**config.default_chat_template_kwargs, **chosen, **(given.kwargs or {})}
    name = "add_generation_prompt"
    if name in variables:
        if not isinstance(variables[name], bool):
            field_name = f"chat_template_kwargs.{name}"
            raise wrong(field_name, "true or false", variables[name])
        add_generation_prompt = variables.pop(name)
    continues = given.continue_final_message is True
    if continues and add_generation_prompt:
        raise InvalidField(
            "continue_final_message and add_generation_prompt cannot both be true",
            param="continue_final_message",
        )
    return TemplateOptions(
        add_generation_prompt=not continues
        if add_generation_prompt is None
        else add_generation_prompt,
        continue_final_message=continues,
        documents=given.documents or (),
        kwargs=variables,
        source=source,
    )


def render_prompt(
    messages: Sequence[Message],
    tools: ToolUse,
    options: TemplateOptions,
    model: ServedModel,
    name: str = "messages",
    warnings: list[str] | None = None,
) -> str:
    """Returns the prompt's text, in time proportional to the messages. Raises RequestError if the
    model has no template, the template refuses the messages, or there are more of them than the
    context has tokens.

    Args:
        name: the field that the messages come from.
        warnings: a list to which losses in rendering are added.
    """
    template = model.chat.template
    if template is None:
        raise InvalidField(
            f"{name} cannot be used: model {model.info.name} {model.chat.missing}", param=name
        )
    if len(messages) > model.info.max_model_len:
        raise context_exceeded(f"the chat has {len(messages)} messages", model.info, name)
    if options.source is not None:
        template = template.replaced(options.source)
    tool_format, shown = model.chat.tool_format, tools.shown
    is_told = tool_format is not None and not (template.shows_tools and model.chat.template_calls)
    if is_told and tool_format is not None:
        messages = tell_tools(
            messages, shown, tool_format, tools.choice, has_system_turn=template.has_system_turn
        )
        shown = ()
    render = partial(
        template.render,
        tools=shown,
        documents=options.documents,
        kwargs=options.kwargs,
        calls=None
        if tool_format is None
        else CallWriting(partial(written_call, tool_format), is_told),
        warnings=warnings,
    )
    begun, thoughts = _begun(messages, options), model.chat.reasoning_format
    if thoughts is not None and leaves_reasoning_open(thoughts, begun):
        # Templates take reasoning out of the answers of a chat, or put empty reasoning before it.
        prompt = render(messages[:-1])
        if prompt.rstrip().endswith(thoughts.begin):
            begun = begun.lstrip().removeprefix(thoughts.begin).lstrip("\n")
        return prompt + begun
    return render(
        messages,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
    )


def _begun(messages: Sequence[Message], options: TemplateOptions) -> str:
    """Returns the beginning of the assistant's answer that the model must continue; "" = none."""
    content = messages[-1].get("content") if messages and options.continue_final_message else None
    return content if isinstance(content, str) else ""


def adds_special_tokens(given: bool | None) -> bool:
    """Returns whether the tokenizer adds its special tokens, such as BOS, to a chat's prompt. By
    default it does not, since the template writes them."""
    return given is True


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes the prompt of one request's messages.

    Attributes:
        options: the template's variables.
        truncation: how to cut the prompt's tokens; None = the prompt is not cut.
        may_lose_images: whether messages with images may have been dropped.
    """

    request: ClientRequest[GenerationFields]
    tools: ToolUse
    options: TemplateOptions
    truncation: Truncation | None = None
    may_lose_images: bool = False

    def make(self, messages: Sequence[Message], num_images: int = 0) -> Prompt:
        """Returns the prompt of messages, in time proportional to them. Raises RequestError as
        `render_prompt` does; InvalidField if the prompt is empty, far too long, or lacks images
        that it refers to. `num_images` says how many images have tags in the texts of the
        messages."""
        request, name = self.request, self.request.names.prompt
        model, special = request.model, adds_special_tokens(request.body.add_special_tokens)
        warnings: list[str] = []
        try:
            text = render_prompt(messages, self.tools, self.options, model, name, warnings)
        except FieldFault as fault:
            raise request.names.named(fault) from fault
        if not text:
            raise InvalidField(
                f"{name}: the chat template renders nothing for these messages", param=name
            )
        check_text(text, name, model.info)
        encoder = PromptEncoder(model.tokenizer, model.info, special, self.truncation)
        with tags_named(request.body):
            told = self._without_images(text, num_images)
        token_ids: Sequence[int] = encoder.encode(told, name)
        if self.truncation is not None:
            token_ids = self.truncation.cut(token_ids)
        thoughts, opening = model.chat.reasoning_format, None
        if thoughts is not None and self.options.continue_final_message:
            is_open = leaves_reasoning_open(thoughts, _begun(messages, self.options))
            opening = thoughts.begin if is_open else thoughts.end or ""
        return Prompt(token_ids, text, warnings, opening)

    def _without_images(self, text: str, num_images: int) -> str:
        """Checks the images of a prompt. Raises InvalidField if text of the client looks like an
        image tag, an image is missing, or a prompt with images would be truncated."""
        images = self.request.model.images
        if images is None:
            return text
        name, needs_all = self.request.names.prompt, not self.may_lose_images
        check_tags(text, num_images, name, images.reserved, needs_all=needs_all)
        if num_images and self.truncation is not None:
            raise InvalidField(
                "truncate_prompt_tokens cannot be used with images", param="truncate_prompt_tokens"
            )
        return without_tags(text, num_images)


class ShownPieces(NamedTuple):
    """Selects the pieces of an answer that the client gets.

    Attributes:
        hides_reasoning: whether pieces of reasoning are left out.
        hides_content: whether content is left out. If tool calls are required, content can only be
            broken calls.
        one_call: whether calls after the first are left out.
    """

    hides_reasoning: bool = False
    hides_content: bool = False
    one_call: bool = False

    def shows(self, piece: Piece) -> bool:
        """Returns whether the client gets a piece."""
        match piece:
            case Content():
                return not self.hides_content
            case Reasoning():
                return not self.hides_reasoning
            case _:
                return not (self.one_call and piece.call_index)
