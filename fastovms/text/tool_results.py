"""Matches tool results to their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

Message = Mapping[str, Any]

NO_RESULT: Final = "No result of this call is known."
"""The text for a missing result if other results of the turn are present."""

STRAY: Final = "tool result without a call"
"""The role of a result that belongs to no earlier call."""


class OrderedMessage(NamedTuple):
    """A message of a chat whose tool results are in the order of their calls.

    Attributes:
        at: the index of the message, or of the turn with the calls.
        is_added: whether it marks a missing result.
    """

    at: int
    message: Message
    is_added: bool = False


def in_order_of_calls(messages: Sequence[Message], *, split: bool) -> Iterator[OrderedMessage]:
    """Yields the messages, with the results after a turn in the order of its calls, because many
    chat templates show no ids. If only some results are missing, a marker is added for each.
    Results without a call come last, with the role `STRAY`. With `split`, a turn with several calls
    becomes one turn per call, each before its result."""
    position = 0
    while position < len(messages):
        start, message = position, messages[position]
        calls, end = message.get("tool_calls") or (), _end_of_results(messages, position)
        position = end
        given = list(enumerate(messages[start + 1 : end], start + 1))
        results = _matched(calls, given)
        if not split or len(calls) < 2:
            yield OrderedMessage(start, message)
        for number, (call, result) in enumerate(zip(calls, results, strict=True)):
            if split and len(calls) > 1:
                head = message if number == 0 else {"role": "assistant", "content": None}
                yield OrderedMessage(start, {**head, "tool_calls": [call]})
            if result is not None:
                yield OrderedMessage(*result)
            elif results != [None] * len(calls):
                marked = {"role": "tool", "tool_call_id": call.get("id"), "content": NO_RESULT}
                yield OrderedMessage(start, marked, is_added=True)
        for index, result_message in given:
            yield OrderedMessage(index, {**result_message, "role": STRAY})


def fault_of_results(messages: Sequence[Message]) -> tuple[int, str] | None:
    """Returns the index of a tool result that OpenAI would refuse, and the reason: no earlier call
    has its id, or another result of the turn has the same id. None = no such result."""
    known: set[object] = set()
    for start, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        left = Counter(call.get("id") for call in calls)
        known |= left.keys()
        for index in range(start + 1, _end_of_results(messages, start)):
            call_id = messages[index].get("tool_call_id")
            if not call_id or None in left:
                continue
            if call_id not in known:
                return index, "is not the id of a call before it"
            left[call_id] -= 1
            if left[call_id] < 0 and any(call.get("id") == call_id for call in calls):
                return index, "is also the id of another result"
    return None


def _end_of_results(messages: Sequence[Message], start: int) -> int:
    """Returns the index after a message and the results that follow its calls."""
    end = start + 1
    if messages[start].get("tool_calls"):
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
    return end


def _matched(
    calls: Sequence[Message], results: list[tuple[int, Message]]
) -> list[tuple[int, Message] | None]:
    """Returns the result of each call, or None, and removes it from `results`. Results match by id,
    otherwise in order if they have no id. If one call and one result are left, they belong
    together."""
    found: list[tuple[int, Message] | None] = []
    for call in calls:
        own = (one for one in results if one[1].get("tool_call_id") == call.get("id"))
        found.append(next(own, None) if call.get("id") else None)
        results[:] = [one for one in results if one is not found[-1]]
    for number, call in enumerate(calls):
        is_last = len(results) == 1 and found.count(None) == 1
        if found[number] is not None:
            continue
        is_any = is_last or not call.get("id")
        others = (one for one in results if is_any or not one[1].get("tool_call_id"))
        found[number] = next(others, None)
        results[:] = [one for one in results if one is not found[number]]
    return found
