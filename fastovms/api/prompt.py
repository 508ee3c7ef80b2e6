"""Creates prompts: renders chats with the template, encodes texts, and checks their length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from fastovms.api.body import typed, wrong
from fastovms.api.chat_messages import Message
from fastovms.api.chat_tools import ToolUse
from fastovms.api.client_request import ClientRequest
from fastovms.api.image_parts import (
    ForbiddenTag,
    ImageSource,
    check_tags,
    forbidden_tag,
    renumbered,
    without_tags,
)
from fastovms.api.request_schemas import GenerationFields
from fastovms.api.served import ServedModel
from fastovms.api.typed_body import place_of
from fastovms.config import ApiConfig, ChatConfig
from fastovms.errors import CONTEXT_EXCEEDED, FieldFault, InvalidField
from fastovms.params import ModelInfo
from fastovms.text.output import leaves_reasoning_open
from fastovms.text.template import CallWriting
from fastovms.text.template_messages import PlacedMessage
from fastovms.text.template_messages import place_of as place_in
from fastovms.text.tokenizer import Tokenizer
from fastovms.text.tool_descriptions import describe_tools, written_call

_CALL_COST: Final = 500
"""The number of characters that a call of the tokenizer counts as, however short its text."""

_MAX_CHARS_PER_TOKEN: Final = 256
"""The number of characters that a token has at most, on average: more than in any vocabulary. A
text that is longer than the context even so is refused without encoding it."""

_USUAL_CHARS_PER_TOKEN: Final = 8
"""The number of characters that a token of ordinary text has at most. A longer text is cut, and its
beginning is encoded first: encoding holds the GIL, so that a text that is far too long would stop
every stream."""

_CUT: Final = 16
"""The maximum number of tokens into which a cut may have split one token."""

_FORMS: Final = (
    "prompt must be a string, a list of strings, a list of token ids or a list of such lists"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        text: None = the client sent token ids, or a part of the prompt was truncated.
        warnings: parts of the messages that the template cannot show.
        opening: if an answer is continued: the text whose end shows whether the answer begins
            within reasoning; None = use `text`.
    """

    token_ids: Sequence[int]
    text: str | None = None
    warnings: Sequence[str] = ()
    opening: str | None = None

    @property
    def end(self) -> str:
        """The text whose end shows whether the answer begins within reasoning."""
        return self.opening if self.opening is not None else self.text or ""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The part of a long prompt that is kept: its last or its first tokens."""

    max_tokens: int
    keeps_end: bool

    def cut(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Returns the tokens that are kept."""
        return token_ids[-self.max_tokens :] if self.keeps_end else token_ids[: self.max_tokens]


def split_prompts(
    prompt: str | list[str | int | list[int]] | None,
    model: ModelInfo,
    config: ApiConfig,
    *,
    truncation: Truncation | None = None,
) -> list[str | list[int]]:
    """Returns the prompts of a request, in order, each checked but not yet encoded. Raises
    InvalidField if the prompts are missing, empty, too many, of mixed types, too long for the
    context without truncation, or have ids outside the vocabulary."""
    if prompt is None:
        raise InvalidField.about("prompt", "is required")
    if isinstance(prompt, str):
        check_text(prompt, "prompt", model)
        return [prompt]
    forms = set(map(type, prompt))
    if forms == {int}:
        token_ids: list[int] = prompt  # type: ignore[assignment]
        _check_token_ids(token_ids, "prompt", model, truncation)
        return [token_ids]
    if not forms:
        raise InvalidField.about("prompt", "must not be an empty list")
    if len(forms) > 1:
        raise InvalidField(f"{_FORMS}, not a mixture", param="prompt")
    if len(prompt) > config.max_prompts:
        raise InvalidField.about(
            "prompt", f"must have at most {config.max_prompts} entries, not {len(prompt)}"
        )
    prompts: list[str | list[int]] = prompt  # type: ignore[assignment]
    for position, entry in enumerate(prompts):
        name = f"prompt[{position}]"
        if isinstance(entry, str):
            check_text(entry, name, model)
        else:
            _check_token_ids(entry, name, model, truncation)
    return prompts


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Encodes texts to the token ids of prompts.

    Attributes:
        truncation: how to truncate long texts, which are then encoded only in part; None = refuse
            them.
    """

    tokenizer: Tokenizer
    model: ModelInfo
    add_special_tokens: bool
    truncation: Truncation | None = None

    def encode(self, text: str, name: str) -> list[int]:
        """Returns the token ids of a text, in time proportional to it. Raises InvalidField if the
        text is far too long (`context_length_exceeded`). `name` is the text's field."""
        truncation = self.truncation
        limit = self.model.max_model_len if truncation is None else truncation.max_tokens + _CUT
        num_chars = limit * _USUAL_CHARS_PER_TOKEN
        keeps_end = truncation is not None and truncation.keeps_end
        part = text[-num_chars:] if keeps_end else text[:num_chars]
        token_ids = self.tokenizer.encode(part, add_special_tokens=self.add_special_tokens)
        if len(part) == len(text):
            return token_ids
        if len(token_ids) <= limit + _CUT:
            return self.tokenizer.encode(text, add_special_tokens=self.add_special_tokens)
        if truncation is None:
            raise context_exceeded(f"the prompt has more than {limit} tokens", self.model, name)
        return token_ids

    def prompt(self, given: str | list[int], name: str) -> Prompt:
        """Returns the encoded prompt, truncated if needed. Raises InvalidField like `encode`."""
        text = given if isinstance(given, str) else None
        token_ids = given if isinstance(given, list) else self.encode(given, name)
        if self.truncation is not None and len(token_ids) > self.truncation.max_tokens:
            return Prompt(self.truncation.cut(token_ids))
        return Prompt(token_ids, text)


def encode_prompts(prompts: Sequence[str | list[int]], encoder: PromptEncoder) -> list[Prompt]:
    """Returns the encoded prompts. Raises InvalidField (`context_length_exceeded`) for a text that
    is far too long; `fields.fit_max_tokens` refuses others."""
    num_prompts = len(prompts)
    return [encoder.prompt(each, prompt_name(i, num_prompts)) for i, each in enumerate(prompts)]


def encoding_cost(texts: Collection[str]) -> int:
    """Returns the cost of encoding the texts: the work for `offload`."""
    return sum(map(len, texts)) + prompts_cost(len(texts))


def prompts_cost(num_texts: int) -> int:
    """Returns the cost of encoding this many texts, apart from their length."""
    return _CALL_COST * (num_texts - 1)


def prompt_name(position: int, num_prompts: int) -> str:
    """Returns the name of a prompt in error messages."""
    return "prompt" if num_prompts == 1 else f"prompt[{position}]"


def context_exceeded(reason: str, model: ModelInfo, name: str) -> InvalidField:
    """Returns the error for a field that exceeds the context. `name` is the field."""
    limit = f"This model's maximum context length is {model.max_model_len} tokens, but {reason}."
    return InvalidField(
        f"{limit} {model.context_reason}".rstrip(),
        param=name,
        code=CONTEXT_EXCEEDED,
    )


def check_text(text: str, name: str, model: ModelInfo) -> None:
    """Raises InvalidField for a text that is empty, or exceeds the context with any
    tokenization."""
    check_num_chars(len(text), name, model)


def check_num_chars(num_chars: int, name: str, model: ModelInfo) -> None:
    """Raises InvalidField if a text of this many characters is empty, or exceeds the context with
    any tokenization."""
    if not num_chars:
        raise InvalidField.about(name, "must not be an empty string")
    if num_chars > model.max_model_len * _MAX_CHARS_PER_TOKEN:
        raise context_exceeded(f"the prompt has {num_chars} characters", model, name)


def _check_token_ids(
    token_ids: list[int], name: str, model: ModelInfo, truncation: Truncation | None
) -> None:
    if not token_ids:
        raise InvalidField.about(name, "must not be an empty list")
    if truncation is None and len(token_ids) > model.max_model_len:
        raise context_exceeded(f"the prompt has {len(token_ids)} tokens", model, name)
    check_token_range(token_ids, name, model)


def check_token_range(token_ids: Sequence[int], name: str, model: ModelInfo) -> None:
    """Raises InvalidField for a token id outside the vocabulary."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < model.vocab_size):
        return
    position, unknown = next(
        (position, token_id)
        for position, token_id in enumerate(token_ids)
        if not 0 <= token_id < model.vocab_size
    )
    name = f"{name}[{position}]"
    raise wrong(name, f"a token id from 0 to {model.vocab_size - 1}", unknown)


_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The chat template's options from a request.

    Attributes:
        kwargs: further variables of the template.
        source: a template that replaces the model's; None = the model's.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: Sequence[Mapping[str, Any]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None


class TemplateFields(NamedTuple):
    """The client's request fields that affect the chat template."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    source: str | None = None
    kwargs: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None


def template_options(model: ServedModel, given: TemplateFields) -> TemplateOptions:
    """Returns the options for the template. The request's values override the operator's defaults,
    and its `chat_template_kwargs` override its other fields. An effort switches thinking on or off,
    as in vLLM. Raises InvalidField if a field is invalid."""
    source, add_generation_prompt = given.source, given.add_generation_prompt
    reasoning_effort = given.reasoning_effort
    config = model.chat.config
    if source is not None and not config.trust_request_chat_template:
        raise InvalidField.about(
            "chat_template", "is not allowed: this server does not trust templates from requests"
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
        typed(variables[name], bool, f"chat_template_kwargs.{name}")
        add_generation_prompt = variables.pop(name)
    continues = given.continue_final_message is True
    if continues and add_generation_prompt:
        raise InvalidField.about(
            "continue_final_message", "and add_generation_prompt cannot both be true"
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
    model has no template, the template refuses the messages, or there are more messages than the
    context has tokens.

    Args:
        name: the field with the messages.
        warnings: a list to which losses in rendering are appended.
    """
    template = model.chat.template
    if template is None:
        raise InvalidField.about(
            name, f"cannot be used: model {model.info.name} {model.chat.missing}"
        )
    if len(messages) > model.info.max_model_len:
        raise context_exceeded(f"the chat has {len(messages)} messages", model.info, name)
    if options.source is not None:
        template = template.replaced(options.source)
    messages = with_opening(messages, model.chat.config)
    tool_format, shown = model.chat.tool_format, tools.shown
    are_described = tool_format is not None and not (
        template.shows_tools and model.chat.template_calls
    )
    if are_described and tool_format is not None:
        messages = describe_tools(
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
        else CallWriting(partial(written_call, tool_format), are_described),
        warnings=warnings,
    )
    begun, reasoning_format = _begun(messages, options), model.chat.reasoning_format
    if reasoning_format is not None and leaves_reasoning_open(reasoning_format, begun):
        # Templates take reasoning out of the answers of a chat, or put empty reasoning before it.
        prompt = render(messages[:-1])
        if prompt.rstrip().endswith(reasoning_format.begin):
            begun = begun.lstrip().removeprefix(reasoning_format.begin).lstrip("\n")
        return prompt + begun
    return render(
        messages,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
    )


_LEADING: Final = ("system", "developer")


def with_opening(messages: Sequence[Message], config: ChatConfig) -> Sequence[Message]:
    """Returns the messages with the operator's added: the system prompt, if the messages do not
    begin with one, and the examples after it."""
    if not (config.system_prompt or config.example_messages):
        return messages
    placed: list[Message] = [
        PlacedMessage(message, place_in(message, index)) for index, message in enumerate(messages)
    ]
    start = next(
        (i for i, message in enumerate(placed) if message["role"] not in _LEADING), len(placed)
    )
    leading = placed[:start]
    if config.system_prompt and not leading:
        prompt = {"role": "system", "content": config.system_prompt}
        leading = [PlacedMessage(prompt, "--system-prompt")]
    examples = [PlacedMessage(each, "--example-messages") for each in config.example_messages]
    return [*leading, *examples, *placed[start:]]


def _begun(messages: Sequence[Message], options: TemplateOptions) -> str:
    """Returns the beginning of the assistant's answer that the model must continue; "" = none."""
    content = messages[-1].get("content") if messages and options.continue_final_message else None
    return content if isinstance(content, str) else ""


def adds_special_tokens(given: bool | None) -> bool:
    """Returns whether the tokenizer adds special tokens, such as BOS, to a chat's prompt. By
    default it does not, since the template contains them."""
    return given is True


class Chat(NamedTuple):
    """A chat request, as read by an endpoint.

    Attributes:
        messages: in the format of templates.
        images: the images of the messages; their texts contain a tag for each image.
        unseen: names of the parts that the model cannot read, for a warning.
        tools: the functions that the answer may call.
        options: the template's options.
        skipped: names of other ignored parts of the request.
        max_prompt_tokens: the oldest messages are dropped if the prompt is longer; None = all are
            kept.
        context: tokens before the prompt.
        prompt: the prompt if it was rendered before, without images; None = render it.
        is_answered: whether there is an answer that could be constrained.
    """

    messages: Sequence[Message]
    images: Sequence[ImageSource] = ()
    unseen: Sequence[str] = ()
    tools: ToolUse = ToolUse()
    options: TemplateOptions = TemplateOptions()
    skipped: Sequence[str] = ()
    max_prompt_tokens: int | None = None
    context: Sequence[int] = ()
    prompt: Prompt | None = None
    is_answered: bool = True


def chat_prompt(
    request: ClientRequest[GenerationFields], chat: Chat, cut: Truncation | None = None
) -> tuple[Prompt, Sequence[ImageSource]]:
    """Returns the prompt of a chat and its images, in time proportional to the messages. Raises
    InvalidField if the prompt is empty, far too long, or an image has no tag, and the errors of
    `render_prompt`. `cut` is how to truncate the prompt; None = not."""
    if chat.prompt is not None:
        return chat.prompt, ()
    make, images, context = partial(_make_prompt, request, chat, cut), chat.images, chat.context
    if chat.max_prompt_tokens is None:
        prompt = make(chat.messages)
    else:
        prompt = fit_messages(chat.messages, make, chat.max_prompt_tokens - len(context))
        if images:  # number the images of the messages that are kept
            text, kept = renumbered(prompt.text or "", len(images))
            prompt, images = replace(prompt, text=text), [images[index] for index in kept]
    if context:
        token_ids = [*context, *prompt.token_ids]
        if len(token_ids) > request.model.info.max_model_len:
            reason = f"the prompt has {len(token_ids)} tokens, of which context has {len(context)}"
            raise context_exceeded(reason, request.model.info, "context")
        prompt = replace(prompt, token_ids=token_ids)
    return prompt, images


def _make_prompt(
    request: ClientRequest[GenerationFields],
    chat: Chat,
    cut: Truncation | None,
    messages: Sequence[Message],
) -> Prompt:
    """Returns the prompt for some of a chat's messages. Raises errors like `chat_prompt`."""
    model, name, warnings = request.model, request.names.prompt, list[str]()
    try:
        text = render_prompt(messages, chat.tools, chat.options, model, name, warnings)
    except FieldFault as fault:
        raise request.names.named(fault) from fault
    if not text:
        raise InvalidField(
            f"{name}: the chat template renders nothing for these messages", param=name
        )
    check_text(text, name, model.info)
    special = adds_special_tokens(request.body.add_special_tokens)
    encoder = PromptEncoder(model.tokenizer, model.info, special, cut)
    prompt = text if model.images is None else _without_images(request, chat, cut, text)
    token_ids: Sequence[int] = encoder.encode(prompt, name)
    if cut is not None:
        token_ids = cut.cut(token_ids)
    reasoning_format, opening = model.chat.reasoning_format, None
    if reasoning_format is not None and chat.options.continue_final_message:
        is_open = leaves_reasoning_open(reasoning_format, _begun(messages, chat.options))
        opening = reasoning_format.begin if is_open else reasoning_format.end or ""
    return Prompt(token_ids, text, warnings, opening)


def _without_images(
    request: ClientRequest[GenerationFields], chat: Chat, cut: Truncation | None, text: str
) -> str:
    """Checks the images of a prompt and returns its text without image tags. Raises InvalidField if
    client text looks like an image tag, an image has no tag, or a prompt with images would be
    truncated."""
    images, num_images = request.model.images, len(chat.images)
    assert images is not None
    needs_all = chat.max_prompt_tokens is None
    with _tags_named(request.body):
        check_tags(text, num_images, request.names.prompt, images.reserved, needs_all=needs_all)
    if num_images and cut is not None:
        raise InvalidField.about("truncate_prompt_tokens", "cannot be used with images")
    return without_tags(text, num_images)


_FIRST_SPEAKERS = ("system", "developer")


def fit_messages(
    messages: Sequence[Message],
    make_prompt: Callable[[Sequence[Message]], Prompt],
    max_tokens: int,
) -> Prompt:
    """Returns the prompt of the system messages at the beginning and as many of the newest messages
    as fit. The kept part begins with a user message, if there is one, so that no answer or tool
    output refers to a dropped message. Raises InvalidField if not even the last messages fit.

    Args:
        make_prompt: renders messages in time proportional to their length; called a few times.
            Raises InvalidField (`context_length_exceeded`) if the messages are far too long.
        max_tokens: the maximum number of prompt tokens.
    """

    num_rules = 0
    while num_rules < len(messages) and messages[num_rules]["role"] in _FIRST_SPEAKERS:
        num_rules += 1
    starts = _starts(messages, num_rules)
    found: dict[int, Prompt] = {}

    def kept(index: int) -> list[Message]:
        return [*messages[:num_rules], *messages[starts[index] :]]

    def fits(index: int) -> bool:
        try:
            prompt = make_prompt(kept(index))
        except InvalidField as error:
            if error.code != CONTEXT_EXCEEDED:
                raise
            return False
        if len(prompt.token_ids) > max_tokens:
            return False
        found[index] = prompt
        return True

    low, high = 0, len(starts) - 1
    if low < high and not fits(low):
        low += 1
    while low < high and low not in found:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return found.get(low) or make_prompt(kept(low))


def _starts(messages: Sequence[Message], first: int) -> list[int]:
    """Returns the indices at which the kept part of a chat may begin, in ascending order; the last
    index yields the shortest chat."""
    users = [index for index in range(first, len(messages)) if messages[index]["role"] == "user"]
    others = [index for index in range(first, len(messages)) if messages[index]["role"] != "tool"]
    return [first, *[index for index in users or others if index > first]]


@contextmanager
def _tags_named(body: Struct) -> Iterator[None]:
    """Names the part of the request in errors about image tags in client text, while the context is
    open."""
    try:
        yield
    except ForbiddenTag as error:
        place = place_of(error.tag, body)
        if place is None:
            raise
        raise forbidden_tag(error.tag, place) from None
