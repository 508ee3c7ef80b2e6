"""Writes the members of a response that repeat its request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from fastovms.api.conversation.chat_task import hides_content
from fastovms.api.generation.alignment import TokenAligner
from fastovms.api.generation.envelope import Envelope
from fastovms.api.request.common_fields import is_streamed
from fastovms.api.request.tokens.logprob_formats import chat_logprobs
from fastovms.api.responses.input.input_items import NewId
from fastovms.api.responses.input.response_fields import ResponseFields
from fastovms.api.responses.input.responses_schema import ResponsesRequest
from fastovms.api.responses.output.echoed_tools import echoed_choice, echoed_tools
from fastovms.api.responses.output.output_items import OutputForm
from fastovms.api.responses.output.response_object import ResponseForm
from fastovms.api.responses.responses_job import ResponsesJob
from fastovms.errors import InvalidField
from fastovms.params import SamplingParams
from fastovms.text.tokens.tracking import TextToken

_MAX_STREAMED_LOGPROBS: Final = 512 * 1024
"""Bytes of log probabilities that an event at the end of a stream may repeat. There are four such
events in one write, and what may lie unread of a stream is limited."""


def response_form(
    body: ResponsesRequest,
    params: SamplingParams | None,
    fields: ResponseFields,
    envelope: Envelope,
) -> ResponseForm:
    """Returns every member that OpenAI's client and Open Responses require, null where there is
    nothing.

    Args:
        params: None = they are not known before the model is loaded.

    Raises:
        InvalidField: one cannot be repeated.
    """
    params = params or _params_of(body)
    conversation_id = fields.conversation_id
    members = {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "model": envelope.model,
        "background": fields.background,
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "frequency_penalty": params.frequency_penalty,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": fields.metadata,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": params.presence_penalty,
        "previous_response_id": fields.previous_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": fields.reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": fields.service_tier,
        "store": fields.store,
        "temperature": params.temperature,
        "text": _encoded(fields.text, "text"),
        "tool_choice": echoed_choice(body.tool_choice),
        "tools": _encoded(echoed_tools(body.tools or ()), "tools"),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "auto" if fields.truncates else "disabled",
        "user": body.user,
    }
    style = envelope.dialect.responses
    if style.tells_min_p and body.min_p is not None:
        members["min_p"] = body.min_p
    return ResponseForm(members, style.length_reason)


def _params_of(body: ResponsesRequest) -> SamplingParams:
    """Returns what the request itself says of sampling."""
    defaults = SamplingParams()

    def of(value: float | None, default: float) -> float:
        return default if value is None else value

    return SamplingParams(
        frequency_penalty=of(body.frequency_penalty, defaults.frequency_penalty),
        presence_penalty=of(body.presence_penalty, defaults.presence_penalty),
        temperature=of(body.temperature, defaults.temperature),
        top_p=of(body.top_p, defaults.top_p),
    )


def output_form(
    job: ResponsesJob, fields: ResponseFields, new_id: NewId, new_call_id: Callable[[], str]
) -> OutputForm:
    body, report = job.preparation.body, job.options.report
    num_top = report.num_logprobs
    limits = [] if job.tools.is_parallel else [1]
    if body.max_tool_calls is not None:
        limits.append(body.max_tool_calls)

    def tell(tokens: Sequence[TextToken]) -> list[bytes]:
        assert num_top is not None
        return [orjson.dumps(entry) for entry in chat_logprobs(tokens, num_top, report.names)]

    tells = num_top is not None
    return OutputForm(
        new_id=new_id,
        new_call_id=new_call_id,
        target=job.tools.target,
        summarizes_reasoning=job.preparation.dialect.responses.summarizes_reasoning,
        seals_reasoning=fields.seals_reasoning,
        max_calls=min(limits, default=None),
        hides_content=hides_content(job.preparation, job.options, job.tools),
        aligner=TokenAligner(job.preparation.model.chat.tags) if tells else None,
        tell_logprobs=tell if tells else None,
        max_logprobs_length=_MAX_STREAMED_LOGPROBS if is_streamed(body) else None,
    )


def _encoded(value: object, name: str) -> orjson.Fragment:
    """Encodes what may be long, and is repeated in many events.

    Raises:
        InvalidField: it cannot be encoded.
    """
    try:
        return orjson.Fragment(orjson.dumps(value))
    except orjson.JSONEncodeError:
        raise InvalidField(f"{name} has an integer of more than 64 bits", param=name) from None
