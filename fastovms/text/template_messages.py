"""Converts messages to the form that a template supports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from fastovms.text.tool_results import NO_RESULT, STRAY, in_order_of_calls

Message = Mapping[str, Any]
WriteCall = Callable[[str, Mapping[str, Any]], str]
"""Returns a tool call as text, given its function's name and arguments."""

Turn = dict[str, Any]

OWN: Final = "own"
SYSTEM: Final = "system"
USER: Final = "user"
TOGETHER: Final = "together"
ONE_BY_ONE: Final = "one by one"
KEPT: Final = "kept"
AS_TEXT: Final = "text"
BEFORE: Final = "before"
BEFORE_USER: Final = "before user"
ANSWER: Final = "answer"
RESULT: Final = "result"
PARTS: Final = "parts"
ANY_ROLE: Final = "*"

ARGUMENTS: Final = "arguments"
"""The key of arguments that are not an object, in the object that wraps them."""

SPEAKERS: Final = ("system", "developer")
_SHORT_ID: Final = 9
_MARKED: Final = "[{role} message]\n{text}"
_RESULT_TEXT: Final = "Result of the call of {name}:\n{text}"
_UNKNOWN: Final = "a function"
_CANNOT_SHOW: Final = "the chat template cannot show the tool result"
_MAX_PLACES: Final = 3


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """The features of a template, and the form of messages that it needs.

    Attributes:
        content_parts: whether content must be a list of parts; otherwise it must be a string.
        iterates_parts: whether lists of parts are read, so that images keep their position.
        empty_lists: whether absent tools and documents must be empty lists instead of None.
        system_tools: whether tools are read from the system message, as JSON (Phi 4).
        shows_tools: whether the prompt contains the tools.
        leading: the role for system and developer messages at the beginning: their "own", "system"
            for both, or "user".
        joins_leading: whether several of these must be merged into one message.
        later: the same as `leading`, for later messages.
        roles: further roles that the template shows; `ANY_ROLE` = any.
        needs_user: whether a user turn must come first.
        joins_users: whether consecutive user turns must be merged.
        joins_answers: whether consecutive assistant turns must be merged.
        empty_answers: whether an assistant turn without content may stay.
        after_result: how a user turn follows a tool result: "kept" unchanged, after an empty
            "answer", or as text at the end of the "result".
        calls: how several calls of one turn are shown: "together", "one by one", or as "text".
        results: whether tool results have turns; otherwise they become user turns.
        orphans: whether a result may come without its call.
        argument_objects: whether arguments must be objects; otherwise they are the model's original
            JSON string.
        wraps_arguments: whether arguments that are not an object must be put into one.
        null_content: whether the content of a turn with only calls is None; otherwise "".
        short_ids: whether call ids must have nine letters and digits (Mistral).
        call_text: where the content of a turn with calls goes: "kept" next to them, in a turn
            "before" them, in one "before user" and calls, or with the calls as "text".
        reasoning: the field from which reasoning is read, or "parts" of content.
        joins_reasoning: whether content next to calls must be added to the reasoning (gpt-oss).
        efforts: the levels of `reasoning_effort` that the template has; empty = any.
    """

    content_parts: bool = False
    iterates_parts: bool = False
    empty_lists: bool = False
    system_tools: bool = False
    shows_tools: bool = True
    leading: str = OWN
    joins_leading: bool = False
    later: str = OWN
    roles: tuple[str, ...] = ()
    needs_user: bool = False
    joins_users: bool = False
    joins_answers: bool = False
    empty_answers: bool = True
    after_result: str = KEPT
    calls: str = TOGETHER
    results: bool = True
    orphans: bool = True
    argument_objects: bool = False
    wraps_arguments: bool = False
    null_content: bool = True
    short_ids: bool = False
    call_text: str = KEPT
    reasoning: str = "reasoning_content"
    joins_reasoning: bool = False
    efforts: tuple[str, ...] = ()


STRICT: Final[Mapping[str, Any]] = {
    "leading": USER,
    "later": USER,
    "roles": (),
    "needs_user": True,
    "joins_users": True,
    "joins_answers": True,
    "empty_answers": False,
    "calls": AS_TEXT,
    "results": False,
}
"""The fields of the form that every template with alternating user and assistant turns supports."""


class PlacedMessage(dict[str, Any]):
    """A message and its path in the request, for warnings and errors.

    Attributes:
        place: the path, such as "messages[3]".
    """

    def __init__(self, message: Message, place: str) -> None:
        super().__init__(message)
        self.place = place


def place_of(message: Message, index: int) -> str:
    """Returns the path of the message with this index."""
    return message.place if isinstance(message, PlacedMessage) else f"messages[{index}]"


class AdaptedMessages(NamedTuple):
    """Messages in the form that a template supports.

    Attributes:
        warnings: losses, because the template cannot show something.
    """

    messages: list[Turn]
    warnings: list[str]


def adapt(
    messages: Sequence[Message],
    form: TemplateForm,
    tools: Sequence[Message] = (),
    write_call: WriteCall | None = None,
) -> AdaptedMessages:
    """Returns copies of messages in OpenAI's format, converted to the form that the template
    supports. Later messages do not change earlier turns. `write_call` returns the text of calls
    that the template cannot show; None = as JSON."""
    turns = _Turns(form, write_call or _json_call)
    last = len(messages) - 1
    split = form.calls == ONE_BY_ONE
    for index, message, is_added in in_order_of_calls(messages, split=split):
        place = place_of(messages[index], index)
        if is_added:
            turns.warn(place, f"has a call without a result; the model reads {NO_RESULT!r}")
        elif split and len(messages[index].get("tool_calls") or ()) > 1:
            turns.warn(
                place,
                "is shown one call after the other, because the chat template supports one call "
                "per turn",
            )
        turns.add(message, place, is_last=index == last)
    return turns.finish(tools)


def join_text(content: object) -> object:
    """Returns text parts as one string, joined by line breaks, as in vLLM and OVMS; returns other
    content unchanged."""
    if not isinstance(content, list):
        return content
    texts = [_text(part) for part in content]
    return "\n".join(text for text in texts if text is not None) if None not in texts else content


class _Turns:
    """Builds the turns of one chat."""

    def __init__(self, form: TemplateForm, write_call: WriteCall) -> None:
        self._form = form
        self._write_call = write_call
        self._turns: list[Turn] = []
        self._is_begun = False
        self._has_user = False
        self._may_join = False
        self._pending: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._are_calls_text = False
        self._num_calls = 0
        self._places: dict[str, list[str]] = {}

    def add(self, message: Message, place: str, *, is_last: bool) -> None:
        """Adds a message.

        Args:
            place: its path in the request.
            is_last: whether it is the last message, which may have to be continued and must stay.
        """
        turn = dict(message)
        turn["content"] = join_text(turn.get("content"))
        role = turn.get("role")
        if role in SPEAKERS:
            self._add_instructions(turn, place)
        elif role == "assistant":
            self._answer(turn, place, is_last=is_last)
        elif role in ("tool", STRAY):
            self._result(turn, place, is_stray=role == STRAY)
        elif role == "user" or role in self._form.roles or ANY_ROLE in self._form.roles:
            self._push(turn, place)
        else:
            self.warn(place, f"is shown as a user turn: the chat template has no {role} turn")
            self._push_user(
                _MARKED.format(role=role, text=_text_of_content(turn["content"])), place
            )

    def finish(self, tools: Sequence[Message]) -> AdaptedMessages:
        form = self._form
        if form.needs_user and not self._has_user:
            self._turns.append({"role": "user", "content": ""})
        if form.system_tools and tools:
            if not self._turns or self._turns[0].get("role") != "system":
                self._turns.insert(0, {"role": "system", "content": ""})
            functions = [tool.get("function", tool) for tool in tools]
            self._turns[0]["tools"] = json.dumps(functions, ensure_ascii=False)
        if form.content_parts or form.reasoning == PARTS:
            self._turns = [_in_parts(turn, form) for turn in self._turns]
        return AdaptedMessages(self._turns, [_warning(*found) for found in self._places.items()])

    def _add_instructions(self, turn: Turn, place: str) -> None:
        """Adds a system or developer message."""
        form, role = self._form, turn["role"]
        way = form.later if self._is_begun else form.leading
        if way == USER:
            text = _text_of_content(turn["content"])
            if self._is_begun:
                text = _MARKED.format(role=role, text=text)
            self.warn(place, f"is shown as a user turn: the chat template has no {role} turn there")
            self._push_user(text, place)
            return
        turn["role"] = SYSTEM if way == SYSTEM else role
        if self._is_begun or not (self._turns and form.joins_leading):
            self._push(turn, place, is_leading=not self._is_begun)
        else:
            self._turns[-1]["content"] = _joined(self._turns[-1]["content"], turn["content"])

    def _answer(self, turn: Turn, place: str, *, is_last: bool) -> None:
        form = self._form
        calls = [self._call(call) for call in turn.pop("tool_calls", None) or ()]
        reasoning = turn.pop("reasoning_content", None) or turn.pop("reasoning", None)
        turn.pop("reasoning", None)
        if reasoning and calls and turn["content"] and form.joins_reasoning:
            reasoning, turn["content"] = _joined(reasoning, turn["content"]), ""
        if reasoning:
            turn[form.reasoning] = reasoning
        content = turn["content"]
        are_text = bool(calls) and (
            form.calls == AS_TEXT or (bool(content) and form.call_text == AS_TEXT)
        )
        if are_text:
            self.warn(place, "is shown with its calls as text: the chat template cannot show them")
            written = [self._written(call["function"]) for call in calls]
            turn["content"] = content = "\n".join(
                filter(None, [_text_of_content(content), *written])
            )
        elif calls and content and form.call_text in (BEFORE, BEFORE_USER):
            turn.pop(form.reasoning, None)
            self._push(turn, place)
            if form.call_text == BEFORE_USER:
                self._turns.append({"role": "user", "content": ""})
            turn = {"role": "assistant", "content": None}
            if reasoning:
                turn[form.reasoning] = reasoning
            content = ""
        if calls and not are_text:
            turn |= {"content": content or (None if form.null_content else ""), "tool_calls": calls}
        elif content is None:
            turn["content"] = ""
        if turn["content"] or calls or reasoning or form.empty_answers or is_last:
            self._push(turn, place)
        if calls:
            self._pending = {call["id"]: call["function"].get("name", "") for call in calls}
            self._names |= self._pending
            self._are_calls_text = are_text

    def _call(self, call: Message) -> Turn:
        function = dict(call.get("function") or {})
        function["arguments"] = self._arguments(function.get("arguments"))
        self._num_calls += 1
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call{self._num_calls:05d}"
        elif self._form.short_ids:
            call_id = _short_id(call_id)
        return {"type": "function", **call, "id": call_id, "function": function}

    def _arguments(self, given: object) -> object:
        value = _parsed(given)
        if value is None:
            value = {}
        is_object = isinstance(value, Mapping)
        if not is_object and self._form.wraps_arguments:
            value, given = {ARGUMENTS: value}, None
        if self._form.argument_objects:
            return value
        return given if isinstance(given, str) and given and given != "null" else _json(value)

    def _written(self, function: Message) -> str:
        value = _parsed(function["arguments"])
        arguments = value if isinstance(value, Mapping) else {ARGUMENTS: value}
        return self._write_call(function.get("name", ""), arguments)

    def _result(self, turn: Turn, place: str, *, is_stray: bool) -> None:
        form, call_id = self._form, turn.get("tool_call_id")
        if isinstance(call_id, str) and call_id and form.short_ids:
            call_id = _short_id(call_id)
        if not call_id:
            call_id = next(iter(self._pending), None)
        name = self._pending.pop(str(call_id), None)
        is_shown = form.results and not self._are_calls_text and (name or form.orphans)
        if not is_shown or is_stray:
            reason = "it belongs to no call of the turn before" if is_stray else _CANNOT_SHOW
            self.warn(place, f"is shown as a user turn: {reason}")
            name = name or self._names.get(str(call_id)) or turn.get("name") or _UNKNOWN
            text = _RESULT_TEXT.format(name=name, text=_text_of_content(turn["content"]))
            pending, are_text = self._pending, self._are_calls_text
            self._push_user(text, place)
            self._pending, self._are_calls_text, self._may_join = pending, are_text, True
            return
        pending = self._pending
        turn["content"] = "" if turn["content"] is None else turn["content"]
        turn["tool_call_id"] = call_id or "call00000"
        if name:
            turn.setdefault("name", name)
        self._push(turn, place)
        self._pending = pending

    def _push_user(self, text: str, place: str) -> None:
        self._push({"role": "user", "content": text}, place)

    def _push(self, turn: Turn, place: str, *, is_leading: bool = False) -> None:
        """Appends a turn, or merges it with the last one if the template requires turns to
        alternate."""
        form, role = self._form, turn["role"]
        last = self._turns[-1] if self._turns else {}
        may_join, self._may_join = self._may_join, False
        self._pending, self._is_begun = {}, self._is_begun or not is_leading
        turn["content"] = "" if turn["content"] is None and role != "assistant" else turn["content"]
        if role == "user":
            self._has_user = True
            if last.get("role") == "user" and (form.joins_users or may_join):
                last["content"] = _joined(last["content"], turn["content"])
                self._may_join = may_join
                return
            if last.get("role") == "tool" or "tool_calls" in last:
                if form.after_result == ANSWER:
                    self._turns.append({"role": "assistant", "content": ""})
                elif form.after_result == RESULT and last.get("role") == "tool":
                    self.warn(
                        place,
                        "is shown with the tool result: the chat template has no user turn there",
                    )
                    last["content"] = _joined(last["content"], turn["content"])
                    return
        elif role != "system" and form.needs_user and not self._has_user and not is_leading:
            self._turns.append({"role": "user", "content": ""})
            self._has_user = True
        is_answer = role == "assistant" == last.get("role") and "tool_calls" not in last
        if (
            is_answer
            and form.joins_answers
            and ("tool_calls" not in turn or form.call_text == KEPT)
        ):
            content = _joined(last["content"], turn["content"])
            self._turns[-1] = {**last, **turn, "content": content}
            return
        self._turns.append(turn)

    def warn(self, place: str, text: str) -> None:
        """Adds a warning that the template shows the message at the path `place` differently than
        the client sent it."""
        places = self._places.setdefault(text, [])
        if place not in places:
            places.append(place)


def _warning(text: str, places: Sequence[str]) -> str:
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    return f"{', '.join(places[:_MAX_PLACES])}{more} {text}"


def _text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def _text_of_content(content: object) -> str:
    """Returns the text parts of a content as a string."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    return content if isinstance(content, str) else ""


def _joined(first: Any, second: Any) -> Any:
    """Merges two contents, with an empty line between texts."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _in_parts(turn: Turn, form: TemplateForm) -> Turn:
    reasoning = turn.pop(PARTS, None)
    if reasoning is None and not form.content_parts:
        return turn
    parts = [{"type": "thinking", "thinking": reasoning}] if reasoning else []
    if turn["content"] or not parts:
        parts += _parts(turn["content"])
    return {**turn, "content": parts}


def _short_id(call_id: str) -> str:
    """Returns a short id; equal for equal ids, so that results match their calls."""
    if len(call_id) == _SHORT_ID and call_id.isalnum():
        return call_id
    return sha256(call_id.encode(errors="replace")).hexdigest()[:_SHORT_ID]


def _parsed(arguments: object) -> Any:
    """Parses a JSON string. Text that is not JSON is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "null")
    except (ValueError, RecursionError):
        return arguments


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_call(name: str, arguments: Mapping[str, Any]) -> str:
    return _json({"name": name, "arguments": arguments})


@dataclass(frozen=True, slots=True)
class ProbedForm:
    """The form of a template and the matrix of results.

    Attributes:
        matrix: the result of each row: one of `OUTCOMES`, or the reason why a history cannot be
            shown.
    """

    form: TemplateForm
    matrix: Mapping[str, str] = field(default_factory=dict)


EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The levels of `reasoning_effort`, in order."""

NO_THINKING: Final = "no_think"
"""Hunyuan's word for no effort."""


def nearest_effort(level: str, levels: Sequence[str]) -> str:
    """Returns the level of `reasoning_effort` in `levels` that is nearest to `level`."""
    if level in levels or level not in EFFORTS or not levels:
        return level
    return min(levels, key=lambda known: abs(_rank(known) - _rank(level)))


def _rank(level: str) -> int:
    return 0 if level == NO_THINKING else EFFORTS.index(level)
