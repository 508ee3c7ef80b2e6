"""Checks the fields of a request for a message that are no part of its chat: `thinking`,
`output_config`, `metadata` and the like, and what the server has not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastovms.api.messages.messages_schema import MessagesRequest
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

_MIN_BUDGET: Final = 1024
"""The least `budget_tokens`, as Anthropic has it."""

_THINKING: Final[Mapping[str, bool]] = {
    "enabled": True,
    "adaptive": True,
    "between_tools": True,
    "disabled": False,
}
"""Whether the model is to think, by the types of `thinking`."""

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard", "fast"),
}
"""Fields that change nothing here, with their values."""

_DISPLAYS: Final = ("summarized", "omitted")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_MISSING: Final[Mapping[str, str | None]] = {
    "mcp_servers": None,
    "container": None,
    "thread": "thread_unsupported_request",
    "compaction": None,
}
"""Fields that ask for what the server has not, with the codes that clients know: they go on without
a thread (`tool_runner` of anthropic 2.12)."""

_KEEPS_THINKING: Final = "clear_thinking_20251015"


@dataclass(frozen=True, slots=True)
class MessageFields:
    """What a request says beside its chat.

    Attributes:
        thinks: whether the model is to think; None = the request does not say.
        omits_thinking: whether thoughts go to the client sealed only, as a signature.
        effort: how much effort to put into the answer; None = as usual.
        format_name: the field that says what the answer's text must look like.
        format: what that is; None = anything.
        warnings: what is passed over.
    """

    thinks: bool | None = None
    omits_thinking: bool = False
    effort: str | None = None
    format_name: str = "output_config.format"
    format: Mapping[str, Any] | None = None
    warnings: Sequence[str] = ()


def read_fields(body: MessagesRequest) -> MessageFields:
    """Reads the fields.

    Raises:
        InvalidField: one is malformed, or asks for what there is not.
    """
    for name, code in _MISSING.items():
        if getattr(body, name):
            raise InvalidField(f"{name} is not supported by this server", param=name, code=code)
    for name in ("n", "best_of"):
        value = getattr(body, name)
        if value not in (None, 1):
            raise InvalidField(f"{name} must be 1, not {show(value)}", param=name)
    for name, allowed in _CHOICES.items():
        value = getattr(body, name)
        if value is not None:
            _one_of(value, allowed, name)
    if body.stop is not None and body.stop_sequences is not None:
        raise InvalidField("stop cannot be used with stop_sequences", param="stop")
    _check_user(body.metadata or {})
    thinks, omits_thinking = _thinking(body.thinking)
    effort, format_name, format = _output(body)
    return MessageFields(
        thinks, omits_thinking, effort, format_name, format, _edits(body.context_management or {})
    )


def _check_user(metadata: Mapping[str, Any]) -> None:
    user_id = metadata.get("user_id")
    if user_id is not None and not isinstance(user_id, str):
        raise _wrong("metadata.user_id", "a string", user_id)


def check_filling(body: MessagesRequest) -> None:
    """Checks a request that only has its prompt computed, so that the next one finds it in the
    cache. As with Anthropic it must not ask for anything of the answer.

    Raises:
        InvalidField: it does.
    """
    asked = {
        "stream": bool(body.stream),
        "thinking": (body.thinking or {}).get("type") == "enabled",
        "output_config.format": bool((body.output_config or {}).get("format")),
        "output_format": bool(body.output_format),
        "tool_choice": (body.tool_choice or {}).get("type") in ("any", "tool"),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InvalidField(
                f"{name} cannot be used with max_tokens 0, which only fills the cache", param=name
            )


def _thinking(given: Mapping[str, Any] | None) -> tuple[bool | None, bool]:
    """Returns whether to think, and whether thoughts are not shown."""
    if given is None:
        return None, False
    kind = _one_of(given.get("type"), tuple(_THINKING), "thinking.type")
    budget = given.get("budget_tokens")
    is_budget = type(budget) is int and budget >= _MIN_BUDGET
    if not is_budget and (kind == "enabled" or budget is not None):
        raise _wrong("thinking.budget_tokens", f"an integer of at least {_MIN_BUDGET}", budget)
    display = given.get("display")
    if display is not None:
        _one_of(display, _DISPLAYS, "thinking.display")
    return _THINKING[kind], display == "omitted"


def _output(body: MessagesRequest) -> tuple[str | None, str, Mapping[str, Any] | None]:
    """Returns the effort, and the format of the answer with its name."""
    config = body.output_config or {}
    effort = config.get("effort")
    if effort is not None:
        _one_of(effort, _EFFORTS, "output_config.effort")
    name, format = "output_config.format", config.get("format")
    if body.output_format is not None:
        if format is not None:
            message = f"output_format cannot be used with {name}, which has taken its place"
            raise InvalidField(message, param="output_format")
        name, format = "output_format", body.output_format
    if format is not None:
        if not isinstance(format, dict):
            raise _wrong(name, "an object", format)
        _one_of(format.get("type"), ("json_schema",), f"{name}.type")
        if not isinstance(format.get("schema"), dict):
            raise _wrong(f"{name}.schema", "an object", format.get("schema"))
    return effort, name, format


def _edits(context_management: Mapping[str, Any]) -> Sequence[str]:
    """Returns which edits of the context are passed over."""
    name = "context_management.edits"
    edits = context_management.get("edits")
    if edits is None:
        return []
    if not isinstance(edits, list):
        raise _wrong(name, "a list", edits)
    passed_over = []
    for position, edit in enumerate(edits):
        place = f"{name}[{position}]"
        if not isinstance(edit, dict):
            raise _wrong(place, "an object", edit)
        kind = edit.get("type")
        if not isinstance(kind, str):
            raise _wrong(f"{place}.type", "a string", kind)
        if kind != _KEEPS_THINKING or edit.get("keep") != "all":
            passed_over.append(f"{place} of type {kind[:100]}")
    return passed_over


def _one_of(value: object, allowed: tuple[str, ...], name: str) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _wrong(name, f"one of {', '.join(allowed)}", value)
    return value


def _wrong(name: str, words: str, value: object) -> InvalidField:
    return InvalidField(f"{name} must be {words}, not {show(value)}", param=name)
