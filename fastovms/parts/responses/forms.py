"""Builds the members of a response that repeat its request, and the options for its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from fastovms.api.answer import Envelope
from fastovms.api.chat_tools import COMPUTERS
from fastovms.api.client_tools import CLIENT_TOOLS, openai_tool
from fastovms.api.fields import is_streamed
from fastovms.api.logprobs import chat_logprobs
from fastovms.api.scoring import TokenAligner
from fastovms.params import SamplingDefaults, SamplingFields, SamplingParams, sampling_numbers
from fastovms.parts.responses.input import NewId, encoded
from fastovms.parts.responses.output import OutputForm, ResponseForm
from fastovms.parts.responses.prepare import ResponsesJob
from fastovms.parts.responses.request import ResponseFields, ResponsesRequest
from fastovms.request_fields import rows_of
from fastovms.text.detokenizer import TextToken

_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
"""The members of a tool that a response repeats, by tool type."""
_KINDS: Final = (*_MEMBERS, *CLIENT_TOOLS, *COMPUTERS)


def echoed_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the tools in OpenAI's format, without ignored tools."""
    return [
        _namespace(tool) if tool["type"] == "namespace" else _tool(tool)
        for tool in tools
        if tool["type"] in (*_MEMBERS, "namespace") or openai_tool(tool, "tools")
    ]


def echoed_choice(choice: str | Mapping[str, Any] | None) -> object:
    """Returns the tool choice in OpenAI's format."""
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
    echoed = {key: tool.get(key) for key in ("type", "name", "description")}
    return {
        **echoed,
        "tools": [_tool(inner) for inner in tool["tools"] if inner["type"] in _MEMBERS],
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool["type"]
    if kind not in _MEMBERS:
        return {**tool}
    members = tool.get(kind) or tool
    echoed = {name: members.get(name) for name in _MEMBERS[kind]}
    if kind == "custom":
        # Neither may be null (openai 3.54).
        echoed = {name: value for name, value in echoed.items() if value is not None}
    return {"type": kind, **echoed}


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    if choice.get("type") in _KINDS and choice["type"] not in _MEMBERS:
        return {"type": choice["type"]}
    kind = "custom" if choice.get("type") == "custom" else "function"
    return {"type": kind, "name": (choice.get(kind) or choice)["name"]}


_MAX_STREAMED_LOGPROBS: Final = 512 * 1024
"""The maximum bytes of log probabilities that an event at the end of a stream may repeat. Four such
events are written at once, and the unread bytes of a stream are limited."""


def response_form(
    body: ResponsesRequest,
    params: SamplingParams | None,
    fields: ResponseFields,
    envelope: Envelope,
) -> ResponseForm:
    """Returns the constant members of a response: all that OpenAI's client and Open Responses
    require; null = not set. Raises InvalidField if a member cannot be encoded as JSON. `params` are
    the sampling parameters; None = unknown until the model is loaded."""
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
    if fields.caching.echoed is not None:
        members["prompt_cache_options"] = fields.caching.echoed
    dialect = envelope.dialect
    for name, row in rows_of(SamplingFields).items():
        is_given = row.field.echo == dialect.name and getattr(body, name) is not None
        if row.field.echo == "*" or is_given:
            members[name] = getattr(params, name)
    return ResponseForm(members, dialect.responses.length_reason)


def output_form(
    job: ResponsesJob, fields: ResponseFields, new_id: NewId, new_call_id: Callable[[], str]
) -> OutputForm:
    """Returns the options for building the output items of a response."""
    body, report, tools = job.asked.body, job.report, job.chat.tools
    num_top = report.num_logprobs
    limits = [] if tools.is_parallel else [1]
    if body.max_tool_calls is not None:
        limits.append(body.max_tool_calls)

    def encode(tokens: Sequence[TextToken]) -> list[bytes]:
        assert num_top is not None
        return [*map(msgspec.json.encode, chat_logprobs(tokens, num_top, report.names))]

    has_logprobs = num_top is not None
    return OutputForm(
        new_id=new_id,
        new_call_id=new_call_id,
        target=tools.target,
        summarizes_reasoning=job.asked.dialect.responses.summarizes_reasoning,
        seals_reasoning=fields.seals_reasoning,
        max_calls=min(limits, default=None),
        hides_content=job.hides_content,
        aligner=TokenAligner(job.asked.model.chat.tags) if has_logprobs else None,
        encode_logprobs=encode if has_logprobs else None,
        max_logprobs_length=_MAX_STREAMED_LOGPROBS if is_streamed(body) else None,
    )
