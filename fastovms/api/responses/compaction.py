"""Answers `POST /responses/compact`: the model summarizes a conversation, and the summary stands in
place of all but the newest messages to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import orjson

from fastovms.api.conversation.sealed_text import seal_summary
from fastovms.api.generation.answer import collect
from fastovms.api.generation.context import ApiContext
from fastovms.api.generation.deltas import SampleDelta, merged
from fastovms.api.generation.job_generation import generation_of
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.preparation import Preparation
from fastovms.api.request.prompting.prompts import context_exceeded
from fastovms.api.responses.answering import item_ids
from fastovms.api.responses.background_runs import ResponsesState
from fastovms.api.responses.create import history_of, id_prefix
from fastovms.api.responses.input.hosted_items import Item
from fastovms.api.responses.input.input_items import NewId
from fastovms.api.responses.input.response_fields import read_fields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.output.response_object import usage_body
from fastovms.api.responses.responses_job import count_tokens, names_of, prepare
from fastovms.api.responses.stored.history import History, item_cost
from fastovms.api.responses.transcript import newest, transcript
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.scanning.output import Content, Reasoning

MAX_SUMMARY: Final = 2048
"""The most tokens of a summary."""

_SHARE: Final = 4
"""A summary takes no more than one part in so many of the context, and neither do the messages that
are kept as they are."""

_MARGIN: Final = 64
"""Tokens that are left free: two texts may have more together than each by itself."""

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

    The answer has the conversation's messages that are not the model's, as far as they take no more
    than their share of the context, and one item of the type `compaction` with the summary, as
    OpenAI's has; both are the input of what follows. The request's tools are not told to the model,
    and nothing is kept.
    """

    def __init__(self, context: ApiContext, state: ResponsesState | None) -> None:
        self._context = context
        self._state = state

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request.

        Raises:
            RequestError, BackendError: there is no answer.
        """
        context = self._context
        preparation = await context.read(request, ResponsesRequest, dialect, names_of)
        body, new_id = preparation.body, context.new_id()
        if is_streamed(body):
            raise InvalidField("stream must be false: a compaction is no stream", param="stream")
        fields = read_fields(body, dialect, keeps=self._state is not None)
        # What came before may be longer than the context: that is what a compaction is for.
        fields = replace(fields, truncates=True)
        history = await history_of(context, self._state, preparation, fields, request.tenant)
        if not history.items:
            raise InvalidField("input has nothing that could be compacted", param="input")
        new_item_id = item_ids(context.new_id, dialect)
        asked = replace(preparation, body=_summary_body(preparation))
        fields = replace(read_fields(asked.body, dialect, keeps=False), reasoning=fields.reasoning)
        room = await _room(asked, history, new_item_id)
        tokenizer = preparation.model.tokenizer

        def count(text: str) -> int:
            return len(tokenizer.encode(text, add_special_tokens=False))

        def read() -> tuple[str, list[Item]]:
            most = preparation.model.info.max_model_len // _SHARE
            return transcript(history.items, room, count), newest(history.items, most, count)

        told, kept = await offload.run(read, item_cost(history.size) + history.size)
        job = await prepare(asked, fields, _question(told, new_item_id))
        envelope = context.envelope(id_prefix(body, dialect), new_id, preparation)
        generation = generation_of(
            job,
            request_id=new_id,
            log_fields=request.log_fields,
            begin_span=context.span_of(request, GenerationKind.CHAT, preparation, envelope.id),
        )
        with generation:
            [deltas] = await collect(generation.run, generation.num_samples)
        compaction = {
            "id": new_item_id("cmp"),
            "type": "compaction",
            "encrypted_content": seal_summary(_summary(merged(deltas))),
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


def _summary_body(preparation: Preparation[ResponsesRequest]) -> ResponsesRequest:
    """Returns the request for a summary. Unless the client wants it, the model does not think about
    it, which would take the room that it needs."""
    body, context = preparation.body, preparation.model.info.max_model_len
    effort = (body.reasoning or {}).get("effort")
    return ResponsesRequest(
        model=body.model,
        instructions=body.instructions,
        max_output_tokens=max(1, min(MAX_SUMMARY, context // _SHARE)),
        chat_template_kwargs=body.chat_template_kwargs,
        enable_thinking=body.enable_thinking if effort is not None else bool(body.enable_thinking),
        store=False,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


async def _room(asked: Preparation[ResponsesRequest], history: History, new_item_id: NewId) -> int:
    """Returns how many tokens the conversation may have in the prompt.

    Raises:
        InvalidField: the instructions leave none.
    """
    fields = read_fields(asked.body, asked.dialect, keeps=False)
    model, num_output = asked.model.info, asked.body.max_output_tokens or 1
    taken = await count_tokens(asked, fields, _question("", new_item_id))
    room = model.max_model_len - num_output - taken - _MARGIN
    if room < _MARGIN:
        raise context_exceeded(f"the instructions have {taken} tokens", model, "instructions")
    return room


def _question(told: str, new_item_id: NewId) -> History:
    """Returns the one message that asks for a summary."""
    text = _TASK.format(told)
    item = {
        "id": new_item_id("msg"),
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }
    return History([item], [item], len(text))


def _summary(sample: SampleDelta) -> str:
    """Returns the text of a summary; the model's thoughts where it came to no more than that."""
    for kind in (Content, Reasoning):
        text = "".join(piece.text for piece in sample.pieces if isinstance(piece, kind)).strip()
        if text:
            return text
    return _NO_SUMMARY
