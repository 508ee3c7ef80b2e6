"""Reads requests of Ollama's API: fields, options and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_type_hints

from msgspec import Struct, defstruct

from fastovms.api.body import show, wrong
from fastovms.api.chat_messages import ChatMessages, Message, read_messages
from fastovms.api.chat_tools import ToolUse, read_tools
from fastovms.api.client_request import FieldNames
from fastovms.api.context import ApiContext
from fastovms.api.dialect import Dialect
from fastovms.api.fields import TokenBudget, TokenReport, token_budget, token_report
from fastovms.api.image_parts import ImageSource, RequestImages, UnreadableParts, images_of_request
from fastovms.api.prepare import CompletionPrompts, RequestReader
from fastovms.api.prompt import Chat, TemplateFields, check_token_range, template_options
from fastovms.api.request_schemas import GenerationFields, ModelField
from fastovms.api.served import ServedModel
from fastovms.errors import InvalidField
from fastovms.http.messages import Request
from fastovms.params import ModelInfo, SamplingFields
from fastovms.request_fields import rows_by_name


class OllamaTextFields(ModelField, frozen=True, kw_only=True):
    """The fields of both text generation endpoints."""

    stream: bool | None = None
    options: OllamaOptions | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None
    keep_alive: str | int | float | None = None


class OllamaChatRequest(OllamaTextFields, frozen=True, kw_only=True):
    """The body of `POST /api/chat`."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaTextFields, frozen=True, kw_only=True):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    context: list[int] | None = None


class OllamaNamed(ModelField, frozen=True, kw_only=True):
    """The body of a request about one model; older clients name it `name`."""

    name: str | None = None
    stream: bool | None = None
    verbose: bool | None = None


class AskedFields(GenerationFields, frozen=True, kw_only=True):
    """A request converted to the fields of the other APIs, with its texts for error messages."""

    messages: Any = None
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None


_ROWS: Final = rows_by_name(SamplingFields, "ollama")
"""The rows of the sampling parameters, by Ollama option."""

_FIELDS: Final[Mapping[str, str]] = {
    **{option: row.name for option, row in _ROWS.items()},
    "stop": "stop",
}
"""The fields of the other APIs, by the equivalent option."""

_PENALTIES: Final = ("repeat_penalty", "presence_penalty", "frequency_penalty")

_NEUTRAL: Final[Mapping[str, float]] = {"typical_p": 1, "tfs_z": 1, "mirostat": 0}
"""Options of unsupported samplers, with the values that have no effect."""

_NAMES: Final[Mapping[str, str]] = {
    **{field: f"options.{option}" for option, field in _FIELDS.items()},
    "format.schema": "format",
}
"""The client's names of fields, for errors raised by shared code."""

_PARAM: Final = re.compile(r"format\.schema|\w+")


class ReadOptions(NamedTuple):
    """The result of reading options.

    Attributes:
        fields: the options as fields of the other APIs.
        num_predict: the maximum number of generated tokens; None = not given.
        warnings: the ignored options.
    """

    fields: Mapping[str, Any]
    num_predict: int | None
    warnings: list[str]


def read_options(given: OllamaOptions | None, model: ModelInfo) -> ReadOptions:
    """Returns the options that are set. Raises InvalidField if an option is not supported, or must
    be an integer and is not."""
    values = option_values(OllamaOptions() if given is None else given)
    for name, neutral in _NEUTRAL.items():
        if values[name] not in (None, neutral):
            param = f"options.{name}"
            raise InvalidField.about(
                param,
                f"must be {neutral}, because this sampler is not supported, not "
                f"{show(values[name])}",
            )
    warnings = _warnings(values, model)
    fields = {field: values[option] for option, field in _FIELDS.items()}
    if values["repeat_last_n"] == 0:
        fields |= {_FIELDS[option]: None for option in _PENALTIES}
    if fields["top_p"] == 0:
        # In Ollama, a top_p of 0 leaves the most probable token.
        fields |= {"top_p": 1.0, "top_k": 1}
    if fields["seed"] == -1:
        fields["seed"] = None
    return ReadOptions(fields, _num_predict(values["num_predict"]), warnings)


@contextmanager
def named_as_given() -> Iterator[None]:
    """While the context is open, changes field names in errors to the client's names, such as
    `options.top_k`."""
    try:
        yield
    except InvalidField as error:
        found = _PARAM.match(error.param or "")
        if found is None or found[0] not in _NAMES:
            raise
        name, given = found[0], _NAMES[found[0]]
        raise InvalidField(
            error.message.replace(name, given, 1),
            param=given + (error.param or "").removeprefix(name),
            code=error.code,
        ) from None


def _num_predict(value: int | None) -> int | None:
    """Returns the maximum number of generated tokens; None = no limit. As in Ollama, -1 and 0 mean
    no limit, and -2 means the rest of the context."""
    if value is None or value in (-2, -1, 0):
        return None
    if value < 0:
        param = "options.num_predict"
        raise InvalidField.about(param, f"must be at least -2, not {value}")
    return value


def _warnings(values: Mapping[str, Any], model: ModelInfo) -> list[str]:
    warnings = []
    context, window = values["num_ctx"], values["repeat_last_n"]
    if context is not None and context > model.max_model_len:
        warnings.append(
            f"options.num_ctx is {context}, but the context of this model has "
            f"{model.max_model_len} tokens, as the server was started"
        )
    if window is not None and window > 0 and any(values[name] for name in _PENALTIES):
        warnings.append("options.repeat_last_n changes nothing: penalties count all of the text")
    return warnings


_ANY_IMAGE: Final = "data:image/*;base64,"
"""The prefix that turns an image's base64 into a data URL. The image type is detected from the
bytes."""


def read_ollama_messages(
    given: Sequence[Mapping[str, Any]], dialect: Dialect, images: RequestImages | None = None
) -> ChatMessages:
    """Returns the messages, with a tag for each image before the text of its message. If the model
    does not support images, images in earlier messages and in tool results are replaced by a note.
    Raises InvalidField if a message is malformed, the last message has an unsupported image, or
    there are too many images.

    Args:
        images: receives the images; None = the model does not support images.
    """
    messages = read_messages([_with_name(message) for message in given], dialect).messages
    _link_results(given, messages)
    unseen = UnreadableParts()
    for position, (message, read) in enumerate(zip(given, messages, strict=True)):
        name = f"messages[{position}].images"
        found = message.get("images")
        if found is not None and not isinstance(found, list):
            raise wrong(name, "a list of base64", found)
        is_history = position < len(given) - 1 or read["role"] == "tool"
        if images is None and is_history:
            notes = [unseen.note("image", f"{name}[{index}]") for index in range(len(found or ()))]
            read["content"] = "\n".join(filter(None, (*notes, read["content"])))
        else:
            add_images(read, found or (), name, images)
    return ChatMessages(messages, () if images is None else images.sources, unseen.warnings)


def add_images(
    message: Message, given: Sequence[object], name: str, images: RequestImages | None
) -> None:
    """Appends the images of a message to `images`, and their tags to its text. Raises InvalidField
    if an image is not a string, there are too many images, or the model does not support images.

    Args:
        name: the field of the images.
        images: the images so far; None = the model does not support images.
    """
    if not given:
        return
    if images is None:
        raise InvalidField(f"{name}: this model takes no images", param=name)
    tags = ""
    for index, image in enumerate(given):
        place = f"{name}[{index}]"
        if not isinstance(image, str) or not image:
            raise wrong(place, "base64", image)
        # Some clients send a data URL instead of plain base64.
        url = image if image.startswith("data:") else _ANY_IMAGE + image
        tags += images.add(ImageSource(url, place))
    message["content"] = tags + (message["content"] or "")


def _with_name(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a message in OpenAI's format: `tool_name` becomes `name`."""
    name = message.get("tool_name")
    return {**message, "name": name} if name is not None else message


def _link_results(given: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> None:
    """Adds an id to each tool call without one, and to its result, because some templates need ids.
    Results are in the order of the calls, or name their tool."""
    waiting: list[tuple[str, str]] = []
    count = 0
    for message, read in zip(given, messages, strict=True):
        calls = read.get("tool_calls", ())
        if calls:
            waiting = []
        for call in calls:
            call.setdefault("id", f"call{count:05d}")
            count += 1
            waiting.append((call["function"]["name"], call["id"]))
        if read["role"] != "tool" or not waiting:
            continue
        name, call_id = message.get("tool_name"), read.get("tool_call_id")
        chosen = next((each for each in waiting if call_id == each[1]), None)
        chosen = chosen or next((each for each in waiting if name == each[0]), waiting[0])
        waiting.remove(chosen)
        read.setdefault("name", chosen[0])
        read.setdefault("tool_call_id", chosen[1])


_EFFORTS: Final = ("low", "medium", "high", "max")


def thinking_fields(think: bool | str | None, name: str, *, can_think: bool) -> TemplateFields:
    """Returns the template's fields for `think`; without `think` the model's default applies.
    Raises InvalidField if the value is unknown, or the model does not support reasoning.

    Args:
        name: the client's name for the model.
        can_think: whether the model's reasoning is separated from answers.
    """
    if isinstance(think, str) and think not in _EFFORTS:
        words = ", ".join(_EFFORTS)
        raise wrong("think", f"true, false or one of {words}", think)
    if think and not can_think:
        raise InvalidField(f"think: {show(name)} does not support thinking", param="think")
    if isinstance(think, str):
        return TemplateFields(reasoning_effort=think)
    return TemplateFields(enable_thinking=think)


_MAX_TOP_LOGPROBS: Final = 20


_ANSWER_SHARE = 8
"""If a request does not limit the answer, 1 / this number of the context is reserved for the
answer."""


@dataclass(frozen=True, slots=True)
class OllamaReader(RequestReader[AskedFields]):
    """Reads the fields that only `/api/chat` and `/api/generate` requests have.

    Attributes:
        num_predict: the maximum number of generated tokens; None = not given.
        top_logprobs: the number of alternatives reported for each token; None = no log
            probabilities.
        warnings: the ignored options.
    """

    body: OllamaChatRequest | OllamaGenerateRequest
    num_predict: int | None
    top_logprobs: int | None
    warnings: Sequence[str]

    @property
    def model_name(self) -> str:
        """The client's name for the model."""
        return self.body.model or self.asked.model.info.name

    def report(self) -> TokenReport:
        return replace(token_report(self.asked, self.top_logprobs), has_timings=True)

    def budget(self) -> TokenBudget:
        return token_budget(self.asked, self.num_predict, may_reach_limit=True)

    def read(self, budget: TokenBudget) -> Chat | CompletionPrompts:
        body, model, name = self.body, self.asked.model, show(self.model_name)
        drops = body.truncate is not False
        images = images_of_request(model.images, may_drop=drops)
        context: Sequence[int] = ()
        tools = ToolUse()
        if isinstance(body, OllamaChatRequest):
            given = [{"type": "function", **tool} for tool in body.tools or ()]
            if given and model.chat.tool_format is None:
                raise InvalidField(f"tools: {name} does not support tools", param="tools")
            tools = read_tools(given, None, None, self.asked.dialect)
            fields = self._thinking()
            found = read_ollama_messages(body.messages or [], self.asked.dialect, images)
        else:
            is_bare, context = is_raw(body, model), body.context or ()
            if not is_bare and context and images is not None:
                raise InvalidField.about("context", "cannot be used with a model that takes images")
            if is_bare and body.think:
                raise InvalidField.about(
                    "think",
                    "cannot be used with raw or suffix, because the model's chat template is "
                    "not used",
                )
            if is_bare and body.suffix and model.tokenizer.fim_tokens is None:
                raise InvalidField(f"suffix: {name} does not support insert", param="suffix")
            check_token_range(context, "context", model.info)
            if is_bare:
                return CompletionPrompts(body.prompt or "", body.suffix or "", context)
            fields = self._thinking()
            found = _prompt_messages(body, images)
        options = fields._replace(continue_final_message=_is_begun(found.messages[-1]))
        return Chat(
            *found,
            tools,
            template_options(model, options),
            max_prompt_tokens=_longest_prompt(model, self.num_predict) if drops else None,
            context=context,
        )

    def _thinking(self) -> TemplateFields:
        can_think = self.asked.model.chat.reasoning_format is not None
        return thinking_fields(self.body.think, self.model_name, can_think=can_think)


def _prompt_messages(body: OllamaGenerateRequest, images: RequestImages | None) -> ChatMessages:
    """Returns the messages for a prompt of `/api/generate`: the system message and the user
    message."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    prompt: Message = {"role": "user", "content": body.prompt or ""}
    add_images(prompt, body.images or (), "images", images)
    return ChatMessages([*messages, prompt], () if images is None else images.sources)


def _is_begun(last: Message) -> bool:
    return last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")


def _longest_prompt(model: ServedModel, num_predict: int | None) -> int:
    """Returns the maximum number of prompt tokens. At most half of the context is reserved for the
    answer."""
    context = model.info.max_model_len
    if num_predict is None:
        return context - context // _ANSWER_SHARE
    return context - min(num_predict, context // 2)


def is_raw(body: OllamaGenerateRequest, model: ServedModel) -> bool:
    """Returns whether the prompt is sent to the model without the chat template. Raises
    InvalidField if a field that needs the template is set as well."""
    is_bare = body.raw is True or bool(body.suffix)
    for name in ("system", "context", "images"):
        if is_bare and getattr(body, name):
            other = "raw is true" if body.raw else "suffix is given"
            raise InvalidField.about(name, f"cannot be used when {other}")
    has_place = model.chat.template is not None or body.system or body.images
    return is_bare or not has_place


def reader_of(
    context: ApiContext,
    request: Request,
    body: OllamaChatRequest | OllamaGenerateRequest,
    model: ServedModel,
    dialect: Dialect,
) -> OllamaReader:
    """Returns the reader of a request. Raises InvalidField if a field is invalid."""
    options = read_options(body.options, model.info)
    is_chat = isinstance(body, OllamaChatRequest)
    texts = ("messages",) if is_chat else ("prompt", "suffix", "system")
    fields = AskedFields(
        model=body.model,
        stream=body.stream is not False,  # a stream is the default here
        **{name: getattr(body, name) for name in texts},
        **options.fields,
    )
    names = FieldNames(
        texts[0],
        "options.num_predict",
        "top_logprobs",
        response_format="format",
        json_schema="format",
    )
    text_format = _text_format(body.format)
    asked = context.asked(
        request, fields, model=model, dialect=dialect, names=names, text_format=text_format
    )
    return OllamaReader(asked, body, options.num_predict, _top_logprobs(body), options.warnings)


def _text_format(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns `format` as the `response_format` of Chat Completions; None = free text."""
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, str):
        raise InvalidField(
            f'format must be "json" or a JSON schema, not {show(given)}', param="format"
        )
    return {"type": "json_object", "schema": given}


def _top_logprobs(body: OllamaTextFields) -> int | None:
    most = body.top_logprobs
    if most is not None and not 0 <= most <= _MAX_TOP_LOGPROBS:
        raise InvalidField.about(
            "top_logprobs", f"must be at least 0 and at most {_MAX_TOP_LOGPROBS}, not {most}"
        )
    if body.logprobs:
        return most or 0
    if most:
        raise InvalidField.about("top_logprobs", "is only allowed when logprobs is true")
    return None


Whole = int | float
"""An integer, which clients may also write as 5.0."""


if TYPE_CHECKING:  # the attributes that `option_values` reads by name

    class SamplingOptions(Struct, frozen=True, kw_only=True):
        """The options that correspond to sampling parameters."""

else:
    SamplingOptions = defstruct(
        "SamplingOptions",
        [
            (option, (Whole if row.is_integer else float) | None, None)
            for option, row in _ROWS.items()
        ],
        frozen=True,
        kw_only=True,
    )


class OllamaOptions(SamplingOptions, frozen=True, kw_only=True):
    """The members of `options`. Those after `stop` configure how Ollama loads a model, or samplers
    that are not supported."""

    num_predict: Whole | None = None
    num_ctx: Whole | None = None
    repeat_last_n: Whole | None = None
    stop: str | list[str] | None = None

    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Whole | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None
    num_keep: Whole | None = None
    num_batch: Whole | None = None
    num_gpu: Whole | None = None
    main_gpu: Whole | None = None
    num_thread: Whole | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None


_WHOLE: Final = frozenset(
    name for name, hint in get_type_hints(OllamaOptions).items() if int in get_args(hint)
)
"""The options that must be integers."""


def option_values(options: OllamaOptions) -> dict[str, Any]:
    """Returns each option's value by name; None = not given. Raises InvalidField if an integer
    option has a fraction other than zero."""
    return {name: _value(options, name) for name in options.__struct_fields__}


def _value(options: OllamaOptions, name: str) -> Any:
    value = getattr(options, name)
    if not isinstance(value, float) or name not in _WHOLE:
        return value
    if not value.is_integer():
        param = f"options.{name}"
        raise wrong(param, "an integer", value)
    return int(value)
