"""Tells of calls as a chat does: in `tool_calls`, each as the kind of tool that the client has
offered, or, to requests with `functions`, as the one `function_call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from fastovms.api.conversation.tool_targets import ToolTarget


class _Kind(NamedTuple):
    """How calls to one kind of tools are told.

    Attributes:
        type: the type of the call, and the member that tells of it.
        text: the member of that one with what the model has written for the tool.
    """

    type: str
    text: str


_FUNCTION = _Kind("function", "arguments")
_CUSTOM = _Kind("custom", "input")


@dataclass(slots=True)
class Call:
    """A call of an answer.

    Attributes:
        texts: what the model has written for the tool.
    """

    target: ToolTarget
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallForms:
    """How the calls of one request's answers are told.

    Attributes:
        target: returns what a function that the model calls is to the client.
        new_id: makes the ids of calls.
        is_legacy: whether the one call is a `function_call`.
    """

    target: Callable[[str], ToolTarget]
    new_id: Callable[[], str]
    is_legacy: bool = False

    @property
    def finish_reason(self) -> str:
        """What ends an answer that calls."""
        return "function_call" if self.is_legacy else "tool_calls"

    def members(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Returns the members of a message that tell of calls; there must be some."""
        told = [self._told(call.target, "".join(call.texts)) for call in calls]
        if self.is_legacy:
            return {"function_call": told[0]["function"]}
        return {"tool_calls": [{"id": self.new_id(), **call} for call in told]}

    def beginning(self, index: int, target: ToolTarget) -> bytes:
        """Returns the delta that begins a call."""
        told = self._told(target, "")
        if self.is_legacy:
            return orjson.dumps({"function_call": told["function"]})
        call = {"id": self.new_id(), "type": told["type"], "index": index, **told}
        return orjson.dumps({"tool_calls": [call]})

    def more(self, index: int, target: ToolTarget, text: str) -> bytes:
        """Returns the delta with more of what the model writes for the tool."""
        kind = _kind(target)
        if self.is_legacy:
            return b'{"function_call":{"arguments":%b}}' % orjson.dumps(text)
        return b'{"tool_calls":[{"index":%d,"%b":{"%b":%b}}]}' % (
            index,
            kind.type.encode(),
            kind.text.encode(),
            orjson.dumps(text),
        )

    def _told(self, target: ToolTarget, text: str) -> dict[str, Any]:
        kind = _kind(target)
        return {"type": kind.type, kind.type: {"name": target.function, kind.text: text}}


def _kind(target: ToolTarget) -> _Kind:
    return _CUSTOM if target.is_custom else _FUNCTION
