"""Compacts conversations: `POST /responses/compact`, and the option `context_management`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from fastovms.api import offload
from fastovms.api.answer import collect
from fastovms.api.chat_messages import seal_history, seal_summary, unseal_summary
from fastovms.api.client_request import ClientRequest
from fastovms.api.context import ApiContext
from fastovms.api.dialect import Dialect
from fastovms.api.fields import is_streamed
from fastovms.api.generate import TextGeneration, merged
from fastovms.api.image_parts import MEDIA_PARTS
from fastovms.api.prompt import context_exceeded
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.parts.responses.background import ResponsesState
from fastovms.parts.responses.history import History, item_cost, read_history
from fastovms.parts.responses.ids import id_prefix, item_id_factory
from fastovms.parts.responses.input import CONFIGURATION, TEXT_PARTS, Item, NewId, as_functions
from fastovms.parts.responses.output import usage_body
from fastovms.parts.responses.prepare import (
    ResponsesJob,
    count_tokens,
    is_longer,
    names_of,
    prepare_response,
)
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest, read_fields
from fastovms.text.scanning import Content, Reasoning

CountTokens = Callable[[str], int]
MAX_SUMMARY: Final = 2048
"""The maximum number of tokens of a summary."""
_SHARE: Final = 4
"""The summary, and the messages that are kept unchanged, may each use 1 / this number of the
context."""
_MARGIN: Final = 64
"""Tokens that stay free, because the concatenation of two texts may have more tokens than both."""
_MIN_SIZE: Final = 256
"""The minimum size in tokens that a conversation is compacted to; a smaller one cannot hold a
summary."""
_TASK: Final = (
    "Below is a conversation between a user and an assistant that works with tools. Write a "
    "summary that replaces it: whoever goes on with the work will have this summary and the "
    "user's newest messages, and nothing else. Say what the user wants, what has been done and "
    "decided, which facts, names, numbers and results still matter, and what is left to do. Write "
    "the summary alone.\n\n<conversation>\n{}\n</conversation>"
)
_NO_SUMMARY: Final = "(The model has written none.)"


class Compaction:
    """The handler of `POST /responses/compact`, for every dialect.

    The response has the conversation's messages except the model's, as many as fit into their share
    of the context, and ends with one item of type `compaction` that has the summary, as in OpenAI's
    API. Together they are the input for the next request. The model does not see the request's
    tools, and nothing is stored.
    """

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._store = None if state is None else state.store

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request to compact a conversation. Raises RequestError or BackendError if the
        request fails."""
        context = self._context
        preparation = await context.read(request, ResponsesRequest, dialect, names_of)
        body = preparation.body
        if body.model is None:
            raise InvalidField.about("model", "is required")
        if is_streamed(body):
            raise InvalidField.about("stream", "must be false: a compaction cannot be streamed")
        fields = read_fields(body, dialect, keeps=self._store is not None)
        # A history that exceeds the context is a reason for a compaction, not an error.
        fields = replace(fields, truncates=True)
        info = preparation.model.info
        history = await read_history(context, request, body, info, fields, dialect, self._store)
        if not history.items:
            raise InvalidField.about("input", "has nothing that could be compacted")
        new_item_id = item_id_factory(context.new_id, dialect)
        size = info.max_model_len
        job, kept = await _summary_job(preparation, fields, history, new_item_id, size)
        envelope, generation = context.start_generation(request, job, id_prefix(body, dialect))
        compaction = {
            "id": new_item_id("cmp"),
            "type": "compaction",
            "encrypted_content": seal_summary(await _summary(generation)),
        }
        answer = {
            "id": envelope.id,
            "object": "response.compaction",
            "created_at": envelope.created,
            "output": [*kept, compaction],
            "usage": usage_body(generation.usage),
        }
        data = await offload.run(lambda: orjson.dumps(answer), item_cost(history.size))
        return Response(200, data)


async def compacted(
    context: ApiContext,
    preparation: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
) -> tuple[Item, Sequence[Item]] | None:
    """Returns the compaction that `context_management` requests, and the items of the compacted
    prompt. Unanswered messages at the end are kept. Returns None if the prompt is short enough, or
    no item can be replaced by a summary. Raises RequestError if a field is invalid; BackendError if
    the model cannot write a summary now."""
    most = preparation.model.info.max_model_len
    threshold = min(fields.compact_threshold or most * 3 // 4, most * 7 // 8)
    if not await is_longer(preparation, fields, history, threshold):
        return None
    end = len(history.items)
    while end and _is_given(history.items[end - 1]):
        end -= 1
    older, newer = history.items[:end], history.items[end:]
    if all(item["type"] == "compaction" or _is_given(item) for item in older):
        return None
    new_item_id = item_id_factory(context.new_id, preparation.dialect)
    past = History(older, older, history.size)
    size = max(threshold, _MIN_SIZE)
    asked = replace(preparation, id=context.new_id())
    job, kept = await _summary_job(asked, fields, past, new_item_id, size)
    summary = await _summary(TextGeneration(job, {}))
    cost = item_cost(history.size)
    sealed = await offload.run(lambda: seal_history(summary, kept, newer), cost)
    item = {"id": new_item_id("cmp"), "type": "compaction", "encrypted_content": sealed}
    return item, [*kept, item, *newer]


def _is_given(item: Item) -> bool:
    """Returns whether an item must be kept, because a summary cannot replace it."""
    if item["type"] in CONFIGURATION:
        return True
    return bool(item["type"] == "message" and item["role"] != "assistant")


async def _summary_job(
    preparation: ClientRequest[ResponsesRequest],
    fields: ResponseFields,
    history: History,
    new_item_id: NewId,
    size: int,
) -> tuple[ResponsesJob, list[Item]]:
    """Returns the job that writes a summary of the history, and the messages to keep. Raises
    RequestError if a field is invalid.

    Args:
        size: the maximum tokens of the conversation; summary and messages get a quarter each.
    """
    asked = replace(preparation, body=_summary_body(preparation, size))
    own = read_fields(asked.body, preparation.dialect, keeps=False)
    room = await _max_prompt_tokens(asked, history, new_item_id)
    tokenizer = preparation.model.tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    def read() -> tuple[str, list[Item]]:
        most = size // _SHARE
        return transcript(history.items, room, count), newest(history.items, most, count)

    past, kept = await offload.run(read, item_cost(history.size) + history.size)
    own = replace(own, reasoning=fields.reasoning)
    return await prepare_response(asked, own, _question(past, new_item_id)), kept


def _summary_body(preparation: ClientRequest[ResponsesRequest], size: int) -> ResponsesRequest:
    """Returns the request for a summary. Reasoning is off unless the client requests it, because it
    would use up the summary's tokens."""
    body = preparation.body
    effort = (body.reasoning or {}).get("effort")
    return ResponsesRequest(
        model=body.model,
        instructions=body.instructions,
        max_output_tokens=max(1, min(MAX_SUMMARY, size // _SHARE)),
        chat_template_kwargs=body.chat_template_kwargs,
        enable_thinking=body.enable_thinking if effort is not None else bool(body.enable_thinking),
        store=False,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        priority=body.priority,
        cache_salt=body.cache_salt,
        request_id=body.request_id,
    )


async def _max_prompt_tokens(
    asked: ClientRequest[ResponsesRequest], history: History, new_item_id: NewId
) -> int:
    """Returns the maximum prompt tokens of the conversation. Raises InvalidField if the
    instructions leave no room for it."""
    fields = read_fields(asked.body, asked.dialect, keeps=False)
    model, num_output = asked.model.info, asked.body.max_output_tokens or 1
    taken = await count_tokens(asked, fields, _question("", new_item_id))
    room = model.max_model_len - num_output - taken - _MARGIN
    if room < _MARGIN:
        raise context_exceeded(f"the instructions have {taken} tokens", model, "instructions")
    return room


def _question(transcript: str, new_item_id: NewId) -> History:
    """Returns a history of one message, which asks for a summary of the transcript."""
    text = _TASK.format(transcript)
    item = {
        "id": new_item_id("msg"),
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }
    return History([item], [item], len(text))


async def _summary(generation: TextGeneration) -> str:
    """Runs the generation and returns the summary's text, or the reasoning if the model wrote only
    reasoning."""
    with generation:
        [deltas] = await collect(generation.run, generation.num_samples)
    sample = merged(deltas)
    for kind in (Content, Reasoning):
        text = "".join(piece.text for piece in sample.pieces if isinstance(piece, kind)).strip()
        if text:
            return text
    return _NO_SUMMARY


_MAX_SHARE: Final = 4
"""One item may use at most 1 / this number of the transcript."""
_CHARS_PER_TOKEN: Final = 3
"""The characters of an item that are tokenized for each token that the item may have; tokenizing
more would take too long."""
_LEFT_OUT: Final = "[...]"
_MIN_CHARS: Final = 4 * len(_LEFT_OUT)
"""The minimum characters of a truncated entry."""


def transcript(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the newest items as text, one entry per item, in order. Earlier summaries are always
    included, because they replace older items. The time is proportional to the tokens that are
    kept. `items` must be checked, and have no references."""
    entries: dict[int, str] = {}
    left = max_tokens
    order = sorted(range(len(items)), key=lambda at: (items[at]["type"] != "compaction", -at))
    for place in order:
        entry = "\n\n".join(filter(None, map(_entry, as_functions(items[place]))))
        if not entry:
            continue
        entry = _cut(f"{entry}\n\n", min(left, max_tokens // _MAX_SHARE), count_tokens)
        left -= count_tokens(entry)
        if not entry or left < 0:
            break
        entries[place] = entry
    return "".join(entries[place] for place in sorted(entries)).rstrip()


def newest(items: Sequence[Item], max_tokens: int, count_tokens: CountTokens) -> list[Item]:
    """Returns the newest messages except the model's, with at most `max_tokens` tokens in total;
    system messages take precedence. Items that configure the answer are kept, too."""
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
            break  # a text of this length has too many tokens in any case
        left -= count_tokens(text)
        if left < 0:
            break
        kept.add(place)
    return [items[place] for place in sorted(kept)]


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
    """Returns the text, or its beginning and end with at most `max_tokens` tokens; "" if
    `max_tokens` is too small."""
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
