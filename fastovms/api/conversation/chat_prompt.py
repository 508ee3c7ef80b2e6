"""Messages to the prompt that the model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastovms.api.conversation.chat_messages import Message
from fastovms.api.request.prompt_images import check_images
from fastovms.api.request.prompts import (
    Prompt,
    Truncation,
    check_text,
    context_exceeded,
    encode_text,
)
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.body import show
from fastovms.errors import InvalidField

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """
    Attributes:
        kwargs: further variables of the template.
        source: a template in place of the model's.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: Sequence[Mapping[str, Any]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


def template_options(
    model: ServedModel,
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    source: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    enable_thinking: bool | None = None,
) -> TemplateOptions:
    """The fields of a request that its template is concerned with.

    What the request says goes before the operator's defaults, and its `chat_template_kwargs`
    before other fields. An effort switches thinking on or off, as in vLLM.

    Raises InvalidField.
    """
    config = model.chat.config
    if source is not None and not config.trust_request_chat_template:
        raise InvalidField(
            "chat_template is not allowed: this server does not trust templates from requests",
            param="chat_template",
        )
    if reasoning_effort is not None and reasoning_effort not in _EFFORTS:
        raise InvalidField(
            f"reasoning_effort must be one of {', '.join(_EFFORTS)}, not {show(reasoning_effort)}",
            param="reasoning_effort",
        )
    chosen: dict[str, Any] = {}
    if reasoning_effort is not None:
        chosen = {"reasoning_effort": reasoning_effort}
        chosen["enable_thinking"] = reasoning_effort != "none"
    if enable_thinking is not None:
        chosen["enable_thinking"] = enable_thinking
    variables = {**config.default_chat_template_kwargs, **chosen, **(kwargs or {})}
    name = "add_generation_prompt"
    if name in variables:
        if not isinstance(variables[name], bool):
            field_name = f"chat_template_kwargs.{name}"
            raise InvalidField(
                f"{field_name} must be true or false, not {show(variables[name])}", param=field_name
            )
        add_generation_prompt = variables.pop(name)
    continues = continue_final_message is True
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
        documents=documents or (),
        kwargs=variables,
        source=source,
    )


def render_prompt(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    options: TemplateOptions,
    model: ServedModel,
) -> str:
    """The prompt's text. Takes time in proportion to the messages.

    Raises RequestError: the model has no template, the template refuses the messages, or there are
    more of them than the context has tokens.
    """
    template = model.chat.template
    if template is None:
        raise InvalidField(
            f"messages cannot be used: model {model.info.name} {model.chat.missing}",
            param="messages",
        )
    if len(messages) > model.info.max_model_len:
        raise context_exceeded(f"the chat has {len(messages)} turns", model.info, "messages")
    if options.source is not None:
        template = template.replaced(options.source)
    return template.render(
        messages,
        tools=tools,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        documents=options.documents,
        kwargs=options.kwargs,
    )


def encode_prompt(
    text: str,
    model: ServedModel,
    truncation: Truncation | None,
    *,
    add_special_tokens: bool,
    num_images: int = 0,
    loses_images: bool = False,
) -> Prompt:
    """Takes time in proportion to the text.

    Args:
        loses_images: messages may have been dropped with theirs.

    Raises InvalidField: empty, far too long, or not with the images that it is to have.
    """
    if not text:
        raise InvalidField("messages: the chat template makes nothing of them", param="messages")
    check_text(text, "messages", model.info)
    token_ids = encode_text(
        check_images(
            text, num_images, "messages", model.images, truncation, loses_images=loses_images
        ),
        "messages",
        model.tokenizer,
        model.info,
        add_special_tokens=add_special_tokens,
        truncation=truncation,
    )
    if truncation is not None and len(token_ids) > truncation.max_tokens:
        return Prompt(truncation.cut(token_ids), text)
    return Prompt(token_ids, text)
