"""One request of the Responses API: its job, the fields that its answer echoes, and its answer."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from fastovms.api.answer import Envelope
from fastovms.api.chat_messages import unseal_summary
from fastovms.api.chat_tools import COMPUTERS, ToolUse, read_tools
from fastovms.api.client_request import ClientRequest, FieldNames
from fastovms.api.client_tools import CLIENT_TOOLS, openai_tool
from fastovms.api.context import ApiContext
from fastovms.api.dialect import Dialect
from fastovms.api.fields import (
    TokenBudget,
    is_streamed,
    num_logprobs,
    token_budget,
)
from fastovms.api.generate import BeginSpan, TextGeneration, Usage
from fastovms.api.image_parts import (
    MEDIA_PARTS,
    ImageSource,
    image_tokens_unknown,
    images_of_request,
)
from fastovms.api.logprobs import TokenReport, chat_logprobs, token_report
from fastovms.api.prepare import ModelInput, RequestReader, prepare
from fastovms.api.prompt import Chat, Prompt, TemplateFields, chat_prompt, template_options
from fastovms.api.scoring import TokenAligner
from fastovms.api.served import ServedModel
from fastovms.errors import CONTEXT_EXCEEDED, InvalidField
from fastovms.http.messages import Caller
from fastovms.params import (
    LOWEST_PRIORITY,
    SamplingDefaults,
    SamplingFields,
    SamplingParams,
    sampling_numbers,
)
from fastovms.parts.responses.input import (
    CONFIGURATION,
    TEXT_PARTS,
    Item,
    NewId,
    as_functions,
    encoded,
    to_messages,
)
from fastovms.parts.responses.output import OutputForm, ResponseForm, ResponseRun
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest
from fastovms.parts.responses.stored import History
from fastovms.request_fields import rows_of
from fastovms.state.store import Resumption
from fastovms.text.detokenizer import TextToken

CountTokens = Callable[[str], int]

_MAX_SHARE: Final = 4
"""No item takes more than one part in this number of the room."""

_CHARS_PER_TOKEN: Final = 3
"""How many characters of an item are kept for each token that it may have, before they are
counted: encoding more than that costs time."""

_LEFT_OUT: Final = "[...]"
_MIN_CHARS: Final = 4 * len(_LEFT_OUT)
"""An entry of fewer characters, cut, says nothing."""


def transcript(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the newest items as text, one entry per item, in order. Earlier summaries are always
    included, because they replace older items. The time is proportional to the tokens that are
    kept. `items` are the checked items, without references."""
    told: dict[int, str] = {}
    left = max_tokens
    order = sorted(range(len(items)), key=lambda place: (not _is_summary(items[place]), -place))
    for place in order:
        entry = "\n\n".join(filter(None, map(_entry, as_functions(items[place]))))
        if not entry:
            continue
        entry = _cut(f"{entry}\n\n", min(left, max_tokens // _MAX_SHARE), count_tokens)
        left -= count_tokens(entry)
        if not entry or left < 0:
            break
        told[place] = entry
    return "".join(told[place] for place in sorted(told)).rstrip()


def newest(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> list[Item]:
    """Returns the newest messages except the model's, with at most `max_tokens` tokens; system
    messages take precedence. Items that configure the answers are kept too."""
    kept = {place for place, item in enumerate(items) if item["type"] in CONFIGURATION}
    left = max_tokens
    given = [
        place
        for place, item in enumerate(items)
        if item["type"] == "message" and item["role"] != "assistant"
    ]
    for place in sorted(given, key=lambda place: (items[place]["role"] == "user", -place)):
        text = _text(items[place]["content"])
        if len(text) > left * _CHARS_PER_TOKEN * _MAX_SHARE:
            break  # it has more tokens in any case
        left -= count_tokens(text)
        if left < 0:
            break
        kept.add(place)
    return [items[place] for place in sorted(kept)]


def _is_summary(item: Item) -> bool:
    return bool(item["type"] == "compaction")


def _entry(item: Item) -> str:
    """Returns the transcript entry of an item; "" for reasoning."""
    match item["type"]:
        case "message":
            return f"{item['role']}: {_text(item['content'])}"
        case "function_call":
            return f"assistant calls {item['name']}: {item['arguments']}"
        case "custom_tool_call":
            return f"assistant calls {item['name']}: {item['input']}"
        case "function_call_output" | "custom_tool_call_output":
            return f"result: {_text(item['output'])}"
        case "compaction":
            return f"summary of what came before: {unseal_summary(item['encrypted_content'])}"
    return ""


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part[TEXT_PARTS[part["type"]]]
        if part["type"] in TEXT_PARTS
        else f"[{MEDIA_PARTS[part['type']]}]"
        for part in content
    )


def _cut(text: str, max_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the text, or its beginning and its end, with at most `max_tokens` tokens; "" if they
    are too few for that."""
    room = max_tokens * _CHARS_PER_TOKEN
    while room > _MIN_CHARS:
        shown = text
        if len(text) > room:
            half = (room - len(_LEFT_OUT)) // 2
            shown = f"{text[:half]}{_LEFT_OUT}{text[-half:]}"
        num_tokens = count_tokens(shown)
        if num_tokens <= max_tokens:
            return shown
        room = min(room, len(shown)) * max_tokens * 7 // (num_tokens * 8)
    return ""


_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
"""The members of a tool that responses repeat, by tool type."""

_KINDS: Final = (*_MEMBERS, *CLIENT_TOOLS, *COMPUTERS)


def echoed_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the tools in OpenAI's form. Ignored tools are left out."""
    return [
        _namespace(tool) if tool["type"] == "namespace" else _tool(tool)
        for tool in tools
        if tool["type"] in (*_MEMBERS, "namespace") or openai_tool(tool, "tools")
    ]


def echoed_choice(choice: str | Mapping[str, Any] | None) -> object:
    """Returns the tool choice in OpenAI's form."""
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    if choice.get("type") != "allowed_tools":
        return _named(choice)
    allowed = choice.get("allowed_tools") or choice
    return {
        "type": "allowed_tools",
        "mode": allowed.get("mode", "auto"),
        "tools": [_named(tool) for tool in allowed["tools"] if tool.get("type") in _KINDS],
    }


def _namespace(tool: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: tool.get(key) for key in ("type", "name", "description")}
    return {**told, "tools": [_tool(inner) for inner in tool["tools"] if inner["type"] in _MEMBERS]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool["type"]
    if kind not in _MEMBERS:
        return {**tool}
    members = tool.get(kind) or tool
    told = {name: members.get(name) for name in _MEMBERS[kind]}
    if kind == "custom":
        # Neither may be null (openai 3.54).
        told = {name: value for name, value in told.items() if value is not None}
    return {"type": kind, **told}


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    if choice.get("type") in _KINDS and choice["type"] not in _MEMBERS:
        return {"type": choice["type"]}
    kind = "custom" if choice.get("type") == "custom" else "function"
    return {"type": kind, "name": (choice.get(kind) or choice)["name"]}


_MAX_STREAMED_LOGPROBS: Final = 512 * 1024
"""Bytes of log probabilities that an event at the end of a stream may repeat. There are four such
events in one write, and what may lie unread of a stream is limited."""


def response_form(
    body: ResponsesRequest,
    params: SamplingParams | None,
    fields: ResponseFields,
    envelope: Envelope,
) -> ResponseForm:
    """Returns the constant members of a response: all that OpenAI's client and Open Responses
    require, null if not set. Raises InvalidField if a member cannot be encoded as JSON. `params`
    are the sampling parameters; None = not known until the model is loaded."""
    params = params or SamplingParams(**sampling_numbers(body, SamplingDefaults(), ""))
    conversation_id = fields.conversation_id
    members = {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "model": envelope.model,
        "background": fields.background,
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": fields.metadata,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": fields.reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": fields.service_tier,
        "store": fields.store,
        # Encoded once, because they may be long and are repeated in many events.
        "text": orjson.Fragment(encoded(fields.text, "text")),
        "tool_choice": echoed_choice(body.tool_choice),
        "tools": orjson.Fragment(encoded(echoed_tools(body.tools or ()), "tools")),
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "auto" if fields.truncates else "disabled",
        "user": body.user,
    }
    if fields.caching.told is not None:
        members["prompt_cache_options"] = fields.caching.told
    dialect = envelope.dialect
    for name, row in rows_of(SamplingFields).items():
        is_given = row.field.echo == dialect.name and getattr(body, name) is not None
        if row.field.echo == "*" or is_given:
            members[name] = getattr(params, name)
    return ResponseForm(members, dialect.responses.length_reason)


def output_form(
    job: ResponsesJob, fields: ResponseFields, new_id: NewId, new_call_id: Callable[[], str]
) -> OutputForm:
    body, report, tools = job.asked.body, job.report, job.chat.tools
    num_top = report.num_logprobs
    limits = [] if tools.is_parallel else [1]
    if body.max_tool_calls is not None:
        limits.append(body.max_tool_calls)

    def tell(tokens: Sequence[TextToken]) -> list[bytes]:
        assert num_top is not None
        return [*map(msgspec.json.encode, chat_logprobs(tokens, num_top, report.names))]

    tells = num_top is not None
    return OutputForm(
        new_id=new_id,
        new_call_id=new_call_id,
        target=tools.target,
        summarizes_reasoning=job.asked.dialect.responses.summarizes_reasoning,
        seals_reasoning=fields.seals_reasoning,
        max_calls=min(limits, default=None),
        hides_content=job.hides_content,
        aligner=TokenAligner(job.asked.model.chat.tags) if tells else None,
        tell_logprobs=tell if tells else None,
        max_logprobs_length=_MAX_STREAMED_LOGPROBS if is_streamed(body) else None,
    )


ResponsesJob = ModelInput[ResponsesRequest]

_USUAL_ANSWER_SHARE: Final = 8
"""If older messages may be dropped, one part in this number of the context is kept free for an
answer of no stated length."""


@dataclass(frozen=True, slots=True)
class ResponsesReader(RequestReader[ResponsesRequest]):
    """Reads what only requests for responses have.

    Attributes:
        fields: their checked options.
        history: the items of the model's input.
        prompt: the prompt of a resumed request, without images; None = the history is rendered.
    """

    fields: ResponseFields
    history: History
    prompt: Prompt | None = None

    def report(self) -> TokenReport:
        body = self.asked.body
        top_logprobs = num_logprobs(body.top_logprobs, "top_logprobs", self.asked.config) or 0
        report = token_report(self.asked, top_logprobs if self.fields.logprobs else None)
        return replace(report, has_timings=True) if self.fields.tells_metrics else report

    def budget(self) -> TokenBudget:
        asked, most = self.asked, self.asked.model.info.max_model_len
        requested = asked.body.max_output_tokens
        if requested is not None and requested > most:
            name = asked.names.max_tokens
            raise InvalidField(
                f"{name} must be at most the context length of {most} tokens, not {requested}",
                param=name,
            )
        default = None
        if self.fields.background:  # nobody need be there to stop it
            limits = asked.config.max_background_tokens, asked.model.info.defaults.max_new_tokens
            default = min(filter(None, limits), default=None)
        return token_budget(asked, requested, default, may_reach_limit=True)

    def read(self, budget: TokenBudget) -> Chat:
        """Returns the chat of the history, without the oldest items if the client allows that."""
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
    """Returns what the model gets for a request; see `prepare`. `kept_prompt` is the prompt of a
    resumed request, without images; None = the history is rendered."""
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
    """Returns the prompt that a request would have, and its images. Raises RequestError if a field
    is invalid."""
    reader = ResponsesReader(asked, fields, history)
    make = lambda: chat_prompt(asked, reader.read(TokenBudget(None, None)))  # noqa: E731
    return await asked.model.chat.rendered(asked.client, make, history.size)


async def count_tokens(
    asked: ClientRequest[ResponsesRequest], fields: ResponseFields, history: History
) -> int:
    """Counts the tokens of the prompt that `prepare` would make. Raises RequestError if a field is
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
    """Returns whether the whole prompt of a request has more than so many tokens, without those of
    images. Raises RequestError if a field is invalid."""
    try:
        prompt, _ = await _prompt_of(asked, replace(fields, truncates=False), history)
    except InvalidField as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return True
    return len(prompt.token_ids) > num_tokens


def names_of(body: ResponsesRequest) -> FieldNames:
    """Returns the names of a response request's fields without `text.format`."""
    return FieldNames("input", "max_output_tokens", "top_logprobs")


def ranked(caller: Caller, fields: ResponseFields) -> Caller:
    """Returns the sender of a response with the lowest priority if the response may wait for
    hours, unless the server has set another priority."""
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
    """Returns the maximum number of prompt tokens if older messages may be dropped. If the answer's
    length may be cut, it reserves at most half of the context, because agents often request a very
    large limit."""
    context = model.info.max_model_len
    if budget.max_tokens is not None and not budget.may_be_cut:
        return context - budget.max_tokens
    if budget.requested is None:
        return context - context // _USUAL_ANSWER_SHARE
    return context - min(budget.requested, context // 2)


def _is_unfinished(items: Sequence[Item]) -> bool:
    """Returns whether the last item is an incomplete message of the model, which it must
    continue."""
    last = items[-1] if items else {}
    return last.get("role") == "assistant" and last.get("status") in ("in_progress", "incomplete")


_FORM: Final = 1
"""The version of what is written. Another one is not read."""

_ID_SIZE: Final = 16
"""Bytes of an id."""

ANY_FILES: Final = "?"
"""A placeholder for the fingerprint of a model whose files were not known when a response was
queued: the model had said nothing then."""

_SEED_BITS: Final = 32
"""Bits of a seed, as many as every dialect takes."""


class KeptJob(msgspec.Struct, frozen=True, kw_only=True):
    """A request that runs in the background without the parts that are stored with its response.

    Attributes:
        model: see `model_key`.
        dialect: the name of the dialect.
        body: the request's body without its input, with the sampling seed.
        created: unix seconds.
        id_key: the key of the item ids; see `numbered_ids`.
        prompt_token_ids, prompt_text: the prompt. A second rendering might differ: templates may
            contain the date. Empty until the model is loaded.
        client: the address that shares the engine with others; "" = the response's key.
        priority: the priority set by the server; None = the body's.
        items: all items of the model's input, until the prompt is stored. Items before the
            request, and its documents, may change or be deleted in the meantime. None = an older
            server, which did not store them, queued the request.
    """

    form: int = _FORM
    model: str
    dialect: str
    body: ResponsesRequest
    created: int
    id_key: str
    prompt_token_ids: list[int]
    prompt_text: str | None
    client: str = ""
    priority: int | None = None
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request for a response. Its model may not be loaded yet.

    Attributes:
        caller: the sender, with the priority that the server has set.
        client: the key or address that shares the engine with others.
        id_key: the key of the ids of items; see `numbered_ids`. "" = they are random.
        first: the item that the output begins with, before the model's; None = there is none.
    """

    body: ResponsesRequest
    fields: ResponseFields
    history: History
    envelope: Envelope
    caller: Caller
    client: str
    id_key: str = ""
    first: Item | None = None


def resumption_of(
    asked: Asked, model: str, *, prompt: Prompt | None = None, keeps_items: bool = False
) -> Resumption | None:
    """Returns the data that another replica needs to resume a request; None if the request cannot
    be encoded, for example because of integers over 64 bits.

    Args:
        model: see `model_key`.
        prompt: None = not rendered yet.
        keeps_items: whether to keep all items of the model's input, because the prompt is not
            rendered yet.
    """
    items = asked.history.items if keeps_items else None
    try:
        job = KeptJob(
            model=model,
            dialect=asked.envelope.dialect.name,
            body=msgspec.structs.replace(asked.body, input=None),
            created=asked.envelope.created,
            id_key=asked.id_key,
            prompt_token_ids=[] if prompt is None else list(prompt.token_ids),
            prompt_text=None if prompt is None else prompt.text,
            client="" if asked.client == asked.caller.tenant else asked.client,
            priority=asked.caller.priority,
            items=None if items is None else [msgspec.Raw(orjson.dumps(item)) for item in items],
        )
        return Resumption(model, msgspec.json.encode(job))
    except (OverflowError, TypeError, UnicodeEncodeError, msgspec.MsgspecError):
        return None


def prompt_resumption(asked: Asked, job: ResponsesJob) -> Resumption | None:
    """Returns the data to resume a request whose prompt is rendered; None also for requests with
    images, or with several samples."""
    if job.candidates.num_samples > 1 or job.chat.images:
        return None
    info, [prompt] = job.asked.model.info, job.prompts
    return resumption_of(asked, model_key(info.fingerprint, info.name), prompt=prompt)


def with_seed(body: ResponsesRequest) -> ResponsesRequest:
    """Returns the request with a fixed sampling seed, so that a replica that resumes it draws the
    same tokens."""
    if body.seed is not None:
        return body
    return msgspec.structs.replace(body, seed=secrets.randbits(_SEED_BITS))


def read_job(data: bytes) -> KeptJob:
    """Decodes the job in the data of a resumption. Raises ValueError if another version of the
    server has written it."""
    try:
        job = msgspec.json.decode(data, type=KeptJob)
    except msgspec.MsgspecError as error:
        raise ValueError("the request was written by another version of the server") from error
    if job.form != _FORM:
        raise ValueError(f"the form of the request is {job.form}, not {_FORM}")
    return job


def numbered_ids(key: str) -> Callable[[], str]:
    """Returns a function whose calls return a sequence of ids of 32 hexadecimal digits. The
    sequence depends only on the key, so every process gets the same one."""
    numbers = count()

    def new_id() -> str:
        text = f"{next(numbers)} {key}".encode()
        return blake2b(text, digest_size=_ID_SIZE).hexdigest()

    return new_id


def model_key(fingerprint: str, name: str) -> str:
    """Returns the identity of a model. Replicas with the same identity may resume its answers."""
    return f"{fingerprint} {name}"


_CALL_ID_LENGTH: Final = 24


class Answering(NamedTuple):
    """What answers a request for a response: either `generation`, or `begin` if the model must be
    loaded first.

    Attributes:
        run: receives the deltas.
        resumption: the data that replicas need to resume the response; None = it cannot be resumed.
        job: None = the model must be loaded first.
    """

    run: ResponseRun
    generation: TextGeneration | None = None
    begin: Begin | None = None
    resumption: Resumption | None = None
    job: ResponsesJob | None = None


Begin = Callable[[ExitStack], Awaitable[Answering]]
"""Waits for the model. Returns a generation, whose context is entered on the stack, and a run that
has made no events."""


def answering(
    context: ApiContext,
    asked: Asked,
    job: ResponsesJob,
    log_fields: dict[str, object],
    begin_span: BeginSpan | None = None,
) -> Answering:
    """Returns what answers a request whose model is loaded."""
    generation = TextGeneration(job, log_fields, begin_span)
    run = new_run(context, asked, job, lambda: generation.usage)
    return Answering(run, generation, job=job)


def new_run(
    context: ApiContext,
    asked: Asked,
    job: ResponsesJob | None = None,
    usage: Callable[[], Usage] = lambda: Usage(0, 0, 0),
) -> ResponseRun:
    """Returns the run of a request. Raises InvalidField if a field cannot be encoded. `job` = None:
    the model is not loaded yet, and `ResponseRun.adopt` completes the run."""
    fields, dialect, params = asked.fields, asked.envelope.dialect, None
    new_id = numbered_ids(asked.id_key) if asked.id_key else context.new_id
    new_item_id = item_ids(new_id, dialect)
    form = OutputForm(new_id=new_item_id, new_call_id=new_id)
    if job is not None:
        params = job.requests[0].params
        form = output_form(job, fields, new_item_id, lambda: f"call_{new_id()[-_CALL_ID_LENGTH:]}")
    return ResponseRun(
        response_form(asked.body, params, fields, asked.envelope),
        replace(form, first=asked.first),
        dialect,
        usage=usage,
        unix_time=context.unix_time,
        tells=is_streamed(asked.body) or fields.background,
        for_all=fields.background,
        prewarms=fields.caching.prewarms,
    )


def item_ids(new_id: Callable[[], str], dialect: Dialect) -> NewId:
    """Returns a function that makes ids of items in the dialect's form."""
    separator = dialect.responses.id_separator
    return lambda prefix: f"{prefix}{separator}{new_id()}"
