"""The schema of Open Responses, as far as this server's answers go: strict, so that a member that
is missing, or null where it must not be, is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

ITEM_STATUSES = ("in_progress", "completed", "incomplete")


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, float)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def one_of(*values: Any) -> Check:
    return lambda value: value in values


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def members(**checks: Check) -> Check:
    """An object that has at least these."""

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, is_right in checks.items():
            assert name in value, f"{name} is missing in {value}"
            assert is_right(value[name]), f"{name} of {value}"
        return True

    return check


def by_type(checks: Mapping[str, Check]) -> Check:
    return lambda value: checks[value["type"]](value)


LOGPROB = members(
    token=is_text,
    logprob=is_number,
    bytes=list_of(is_integer),
    top_logprobs=list_of(members(token=is_text, logprob=is_number, bytes=list_of(is_integer))),
)
PART = by_type(
    {
        "output_text": members(
            text=is_text, annotations=list_of(is_object), logprobs=list_of(LOGPROB)
        ),
        "reasoning_text": members(text=is_text),
        "summary_text": members(text=is_text),
        "refusal": members(refusal=is_text),
    }
)
ITEM = by_type(
    {
        "message": members(
            id=is_text,
            status=one_of(*ITEM_STATUSES),
            role=one_of("user", "assistant", "system", "developer"),
            content=list_of(PART),
        ),
        "function_call": members(
            id=is_text,
            call_id=is_text,
            name=is_text,
            arguments=is_text,
            status=one_of(*ITEM_STATUSES),
        ),
        "reasoning": members(id=is_text, summary=list_of(PART), content=list_of(PART)),
    }
)
TOOL = members(
    type=one_of("function"),
    name=is_text,
    description=maybe(is_text),
    parameters=maybe(is_object),
    strict=maybe(is_flag),
)
USAGE = members(
    input_tokens=is_integer,
    output_tokens=is_integer,
    total_tokens=is_integer,
    input_tokens_details=members(cached_tokens=is_integer),
    output_tokens_details=members(reasoning_tokens=is_integer),
)
RESPONSE = members(
    id=is_text,
    object=one_of("response"),
    created_at=is_integer,
    completed_at=maybe(is_integer),
    status=one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
    incomplete_details=maybe(members(reason=is_text)),
    model=is_text,
    previous_response_id=maybe(is_text),
    instructions=maybe(is_text),
    output=list_of(ITEM),
    error=maybe(members(code=is_text, message=is_text)),
    tools=list_of(TOOL),
    tool_choice=lambda value: value in ("none", "auto", "required") or is_object(value),
    truncation=one_of("auto", "disabled"),
    parallel_tool_calls=is_flag,
    text=members(format=members(type=one_of("text", "json_object", "json_schema"))),
    top_p=is_number,
    presence_penalty=is_number,
    frequency_penalty=is_number,
    top_logprobs=is_integer,
    temperature=is_number,
    reasoning=maybe(is_object),
    user=maybe(is_text),
    usage=maybe(USAGE),
    max_output_tokens=maybe(is_integer),
    max_tool_calls=maybe(is_integer),
    store=is_flag,
    background=is_flag,
    service_tier=is_text,
    metadata=is_object,
    safety_identifier=maybe(is_text),
    prompt_cache_key=maybe(is_text),
)

OF_RESPONSE = members(response=RESPONSE)
OF_ITEM = members(output_index=is_integer, item=ITEM)
IN_ITEM = members(item_id=is_text, output_index=is_integer)
IN_PART = members(item_id=is_text, output_index=is_integer, content_index=is_integer)
EVENTS: Mapping[str, tuple[Check, ...]] = {
    **{
        f"response.{kind}": (OF_RESPONSE,)
        for kind in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    "response.output_item.added": (OF_ITEM,),
    "response.output_item.done": (OF_ITEM,),
    "response.content_part.added": (IN_PART, members(part=PART)),
    "response.content_part.done": (IN_PART, members(part=PART)),
    "response.output_text.delta": (IN_PART, members(delta=is_text, logprobs=list_of(LOGPROB))),
    "response.output_text.done": (IN_PART, members(text=is_text, logprobs=list_of(LOGPROB))),
    "response.reasoning_text.delta": (IN_PART, members(delta=is_text)),
    "response.reasoning_text.done": (IN_PART, members(text=is_text)),
    "response.function_call_arguments.delta": (IN_ITEM, members(delta=is_text)),
    "response.function_call_arguments.done": (IN_ITEM, members(arguments=is_text)),
}


def check_response(response: Any) -> None:
    """Raises AssertionError."""
    assert RESPONSE(response)


def check_event(event: Any) -> None:
    """Raises AssertionError."""
    assert event["type"] in EVENTS
    assert all(check(event) for check in EVENTS[event["type"]])
