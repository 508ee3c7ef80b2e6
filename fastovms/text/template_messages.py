"""Messages in the form that a template reads."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from typing import Any, Final, NamedTuple

from fastovms.errors import RequestError
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
"""The name under which an object holds arguments that are not an object."""

_SPEAKERS: Final = ("system", "developer")
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
        iterates_parts: whether lists of parts are read, so that images have a place.
        empty_lists: whether absent tools and documents must be empty lists instead of None.
        system_tools: whether tools are read from the system message, as JSON text (Phi 4).
        shows_tools: whether the model is shown the tools.
        leading: the role of system and developer messages at the beginning: their "own", "system"
            for both, or "user".
        joins_leading: whether several of these must become one message.
        later: the same as `leading` for messages further on.
        roles: further roles that the template shows; `ANY_ROLE` = any.
        needs_user: whether a user turn must come first.
        joins_users: whether user turns in a row must become one.
        joins_answers: whether assistant turns in a row must become one.
        empty_answers: whether an assistant turn without content may stay.
        after_result: how a user turn follows a tool result: "kept" unchanged, after an empty
            "answer", or as text at the end of the "result".
        calls: how several calls of one turn are shown: "together", "one by one", or as "text".
        results: whether tool results have turns; otherwise they become user turns.
        orphans: whether a result may stand without its call.
        argument_objects: whether arguments must be objects; otherwise they are JSON text, which
            keeps them as the model wrote them.
        wraps_arguments: whether arguments that are not an object must be put into one.
        null_content: whether the content of a turn that has only calls is None; otherwise "".
        short_ids: whether call ids must have nine letters and digits (Mistral).
        call_text: where the content of a turn with calls goes: "kept" next to them, in a turn
            "before" them, in one "before user" and calls, or with the calls as "text".
        reasoning: the member from which reasoning is read, or "parts" of content.
        joins_reasoning: whether content next to calls must be added to the reasoning (gpt-oss).
        efforts: the levels of `reasoning_effort` that the template has; none = any.
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
"""The members of the form that any template shows that knows users and assistants in turn."""


class PlacedMessage(dict[str, Any]):
    """A message with its place in the request, for warnings and errors.

    Attributes:
        place: such as "messages[3]".
    """

    def __init__(self, message: Message, place: str) -> None:
        super().__init__(message)
        self.place = place


def place_of(message: Message, index: int) -> str:
    """Returns the place of the message with this index."""
    return message.place if isinstance(message, PlacedMessage) else f"messages[{index}]"


class Adapted(NamedTuple):
    """Messages in the form that a template shows.

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
) -> Adapted:
    """Returns copies of messages in OpenAI's form, changed to the form that the template shows.
    Later messages do not change earlier turns. `write_call` returns the text of calls that the
    template cannot show; None = as JSON."""
    turns = _Turns(form, write_call or _json_call)
    last = len(messages) - 1
    split = form.calls == ONE_BY_ONE
    for index, message, is_added in in_order_of_calls(messages, split=split):
        place = place_of(messages[index], index)
        if is_added:
            turns.warn(place, f"has a call without a result; the model reads {NO_RESULT!r}")
        elif split and len(messages[index].get("tool_calls") or ()) > 1:
            turns.warn(place, "is shown one call after the other, as the chat template takes one")
        turns.add(message, place, is_last=index == last)
    return turns.finish(tools)


def join_text(content: object) -> object:
    """Returns text parts as one string joined by line ends, as in vLLM and OVMS; returns other
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
        self._has_told_calls = False
        self._num_calls = 0
        self._places: dict[str, list[str]] = {}

    def add(self, message: Message, place: str, *, is_last: bool) -> None:
        """Adds a message.

        Args:
            place: its place in the request.
            is_last: whether it is the last message, which may have to be continued and must stay.
        """
        turn = dict(message)
        turn["content"] = join_text(turn.get("content"))
        role = turn.get("role")
        if role in _SPEAKERS:
            self._speak(turn, place)
        elif role == "assistant":
            self._answer(turn, place, is_last=is_last)
        elif role in ("tool", STRAY):
            self._result(turn, place, is_stray=role == STRAY)
        elif role == "user" or role in self._form.roles or ANY_ROLE in self._form.roles:
            self._push(turn, place)
        else:
            self.warn(place, f"is shown as a user turn: the chat template has no {role} turn")
            self._push_user(_MARKED.format(role=role, text=_string(turn["content"])), place)

    def finish(self, tools: Sequence[Message]) -> Adapted:
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
        return Adapted(self._turns, [_warning(*found) for found in self._places.items()])

    def _speak(self, turn: Turn, place: str) -> None:
        """Adds a message of the system or the developer."""
        form, role = self._form, turn["role"]
        way = form.later if self._is_begun else form.leading
        if way == USER:
            text = _string(turn["content"])
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
        has_told = bool(calls) and (
            form.calls == AS_TEXT or (bool(content) and form.call_text == AS_TEXT)
        )
        if has_told:
            self.warn(place, "is shown with its calls as text: the chat template cannot show them")
            written = [self._written(call["function"]) for call in calls]
            turn["content"] = content = "\n".join(filter(None, [_string(content), *written]))
        elif calls and content and form.call_text in (BEFORE, BEFORE_USER):
            turn.pop(form.reasoning, None)
            self._push(turn, place)
            if form.call_text == BEFORE_USER:
                self._turns.append({"role": "user", "content": ""})
            turn = {"role": "assistant", "content": None}
            if reasoning:
                turn[form.reasoning] = reasoning
            content = ""
        if calls and not has_told:
            turn |= {"content": content or (None if form.null_content else ""), "tool_calls": calls}
        elif content is None:
            turn["content"] = ""
        if turn["content"] or calls or reasoning or form.empty_answers or is_last:
            self._push(turn, place)
        if calls:
            self._pending = {call["id"]: call["function"].get("name", "") for call in calls}
            self._names |= self._pending
            self._has_told_calls = has_told

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
        is_shown = form.results and not self._has_told_calls and (name or form.orphans)
        if not is_shown or is_stray:
            reason = "it belongs to no call of the turn before" if is_stray else _CANNOT_SHOW
            self.warn(place, f"is shown as a user turn: {reason}")
            name = name or self._names.get(str(call_id)) or turn.get("name") or _UNKNOWN
            text = _RESULT_TEXT.format(name=name, text=_string(turn["content"]))
            pending, has_told = self._pending, self._has_told_calls
            self._push_user(text, place)
            self._pending, self._has_told_calls, self._may_join = pending, has_told, True
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
        """Appends a turn, or joins it to the last one if the template requires turns to
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
        if is_answer and form.joins_answers and ("tool_calls" not in turn or _may_hold(form)):
            content = _joined(last["content"], turn["content"])
            self._turns[-1] = {**last, **turn, "content": content}
            return
        self._turns.append(turn)

    def warn(self, place: str, text: str) -> None:
        """Adds a warning that the template shows the message at `place` differently than the client
        sent it."""
        places = self._places.setdefault(text, [])
        if place not in places:
            places.append(place)


def _may_hold(form: TemplateForm) -> bool:
    """Returns whether a turn with calls may have content."""
    return form.call_text == KEPT


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


def _string(content: object) -> str:
    """Returns the text of a content, without parts that are not text."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    return content if isinstance(content, str) else ""


def _joined(first: Any, second: Any) -> Any:
    """Returns two contents as one, with an empty line between texts."""
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
    """Returns the value that a JSON text holds. Text that is not JSON stays text."""
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


Render = Callable[[Sequence[Message], TemplateForm, Mapping[str, Any]], str]
"""Renders adapted messages with tools and further variables. Raises RequestError."""

Way = Mapping[str, Any]
"""Members of a `TemplateForm`."""

TRIED_TOOL: Final[Message] = {
    "type": "function",
    "function": {
        "name": "some_function",
        "description": "Does something.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A place."}},
            "required": ["place"],
        },
    },
}

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The levels of `reasoning_effort`, in order."""

_NO_THINKING: Final = "no_think"
"""Hunyuan's word for no effort."""

_MARK: Final = re.compile(r"mark\d+mark")
_THOUGHT: Final = re.compile(r"thought\d+thought")
_NAME: Final = re.compile(r"name\d+name")
_JUNK: Final = re.compile(r"\b(?:None|null|Undefined)\b")
_WRITTEN_PART: Final = re.compile(r"""["']thinking["']:""")
_ROLE: Final = re.compile(r"""["']([a-z_]{3,30})["']""")
_STANDARD_ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool"))
_ECHOED: Final = "dweller"
_MAX_ROLES: Final = 64
_MAX_SECONDS: Final = 2.0
"""Processor time for the matrix of a template. The slowest of 99 public templates takes 0.3 s."""

_JSON: Final = re.compile(r'(?<!\\)"place":\s*"mark51mark"')

SHOWN: Final = "shown"
ADAPTED: Final = "adapted"
SHOWN_AS_TEXT: Final = "shown as text"
NOT_KEPT: Final = "not kept"
OUTCOMES: Final = (SHOWN, ADAPTED, SHOWN_AS_TEXT, NOT_KEPT)


def _says(role: str, number: int) -> Message:
    return {"role": role, "content": f"mark{number}mark"}


def _calls(*numbers: int, content: str | None = None, arguments: object = "") -> Message:
    calls = [
        {
            "id": f"call-of-another-server-{number}",
            "type": "function",
            "function": {
                "name": f"name{number}name",
                "arguments": arguments or f'{{"place":  "mark{number}mark"}}',
            },
        }
        for number in numbers
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(number: int, of: int) -> Message:
    return {**_says("tool", number), "tool_call_id": f"call-of-another-server-{of}"}


_SWITCHES: Final = {
    **dict.fromkeys(("thinking", "enable_thinking", "add_thoughts"), True),
    **dict.fromkeys(("preserve_thinking", "keep_past_thinking"), True),
    "clear_thinking": False,
    "think_render_option": "all",
    "reasoning_effort": "high",
}
"""Variables by which templates keep the reasoning of earlier turns."""

_THINKS: Final = {"reasoning_content": "thought1thought"}
_U1, _U2, _U3 = (_says("user", number) for number in (11, 12, 13))
_A1, _A2 = (_says("assistant", number) for number in (21, 22))
_S1, _S2 = (_says("system", number) for number in (31, 32))
_D1, _D2 = (_says("developer", number) for number in (41, 42))
_CALL, _R1, _R2 = _calls(51), _result(61, 51), _result(62, 52)
_CUT, _LIST = '{"place": "mark51mark', '["mark51mark", 2]'


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix: a kind of history.

    Attributes:
        ways: the ways of showing the histories, best first; the first that shows all is used.
        needs_thoughts: whether the reasoning must be shown.
        has_arguments: whether the notation of arguments counts.
        variables: further variables of the template.
        echoed: a history that shows whether the template has developer turns.
    """

    name: str
    histories: tuple[tuple[Message, ...], ...]
    ways: tuple[Way, ...] = ({},)
    needs_thoughts: bool = False
    has_arguments: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    echoed: tuple[Message, ...] | None = None


_CALL_WAYS: Final[tuple[Way, ...]] = (
    *(
        {"argument_objects": objects, "null_content": null, "short_ids": short}
        for short, objects, null in product((False, True), (False, True), (True, False))
    ),
    *({"results": False, "argument_objects": objects} for objects in (False, True)),
    {"calls": AS_TEXT},
    {"calls": AS_TEXT, "results": False},
)

_ROWS: Final = (
    Row(
        "a question",
        ((_U1,),),
        tuple(
            {"content_parts": parts, "empty_lists": lists}
            for parts, lists in product((False, True), (False, True))
        ),
    ),
    Row("a system turn", ((_S1, _U1),), ({}, {"leading": SYSTEM}, {"leading": USER})),
    Row(
        "a developer turn",
        ((_D1, _U1),),
        ({}, {"leading": SYSTEM}, {"leading": USER}),
        echoed=(_D1, _U1),
    ),
    Row(
        "several system turns",
        ((_S1, _S2, _U1), (_S1, _D1, _U1), (_D1, _S1, _U1)),
        ({}, {"joins_leading": True}),
    ),
    Row("an answer", ((_U1, _A1, _U2), (_S1, _U1, _A1, _U2), (_U1, _A1))),
    Row("users in a row", ((_U1, _U2), (_U1, _A1, _U2, _U3)), ({}, {"joins_users": True})),
    Row("answers in a row", ((_U1, _A1, _A2, _U2),), ({}, {"joins_answers": True})),
    Row("an empty answer", ((_U1, {**_A1, "content": ""}, _U2),), ({}, {"empty_answers": False})),
    Row("a call", ((_U1, _CALL, _R1), (_U1, _CALL, _R1, _A1, _U2)), _CALL_WAYS, has_arguments=True),
    Row(
        "two calls in a turn",
        (
            (_U1, _calls(51, 52), _R1, _R2),
            (_U1, _calls(51, 52), _R1, _R2, _A1, _U2),
        ),
        ({}, {"calls": ONE_BY_ONE}, {"calls": AS_TEXT}, {"calls": AS_TEXT, "results": False}),
    ),
    Row(
        "an answer first",
        ((_A1, _U1), (_S1, _A1, _U1), (_CALL, _R1, _U1), (_S1,), (_D1,)),
        ({}, {"needs_user": True}, {"needs_user": True, "leading": USER}),
    ),
    Row(
        "a user after a result",
        ((_U1, _CALL, _R1, _U2), (_U1, _CALL, _R1, _U2, _A1, _U3), (_U1, _CALL, _U2)),
        ({}, {"after_result": ANSWER}, {"after_result": RESULT}),
    ),
    Row(
        "text beside a call",
        (
            (_U1, _calls(51, content="mark21mark"), _R1),
            (_U1, _calls(51, content="mark21mark"), _R1, _A2, _U2),
        ),
        ({}, {"call_text": BEFORE}, {"call_text": BEFORE_USER}, {"call_text": AS_TEXT}),
    ),
    Row(
        "arguments that are no object",
        tuple(
            (_U1, _calls(51, arguments=arguments), _R1)
            for arguments in (_CUT, _LIST, "null", "4711", '"mark51mark"')
        ),
        ({}, {"wraps_arguments": True}),
    ),
    Row(
        "a result without its call",
        ((_U1, _R1), (_R1, _U1), (_U1, _A1, _R1, _U2)),
        ({}, {"orphans": False}),
    ),
    Row(
        "a system turn later on",
        tuple(
            history
            for later in (_S2, _D2)
            for history in (
                (_U1, _A1, later, _U2),
                (_S1, _U1, later),
                (_S1, _U1, later, _A1, _U2),
                (_U1, _CALL, _R1, later),
            )
        ),
        ({}, {"later": SYSTEM}, {"later": USER}),
        echoed=(_U1, _A1, _D2, _U2),
    ),
    Row(
        "reasoning",
        ((_U1, {**_CALL, **_THINKS}, _R1), (_U1, {**_A1, **_THINKS})),
        tuple(
            {"reasoning": member}
            for member in ("reasoning_content", "reasoning", "thinking", "thought", PARTS)
        ),
        needs_thoughts=True,
        variables=_SWITCHES,
    ),
    Row(
        "reasoning and text beside a call",
        ((_U1, {**_calls(51, content="mark21mark"), **_THINKS}, _R1),),
        ({}, {"joins_reasoning": True}),
        needs_thoughts=True,
        variables=_SWITCHES,
    ),
)


@dataclass(frozen=True, slots=True)
class FoundForm:
    """The form of a template and the matrix of results.

    Attributes:
        matrix: the outcome of each row: one of `OUTCOMES`, or the reason why a history cannot be
            shown.
    """

    form: TemplateForm
    matrix: Mapping[str, str] = field(default_factory=dict)


def find_form(
    source: str,
    render: Render,
    tools: Sequence[Message],
    clock: Callable[[], float] = time.thread_time,
) -> FoundForm:
    """Finds the form of a template. After `_MAX_SECONDS` the search ends, and the rest of the form
    keeps its defaults.

    Args:
        tools: the tools for rendering.
        clock: returns the CPU time of this thread in seconds.
    """
    deadline = clock() + _MAX_SECONDS

    def bounded(
        messages: Sequence[Message], form: TemplateForm, variables: Mapping[str, Any]
    ) -> str:
        if clock() > deadline:
            raise RequestError("the chat template takes too long to render")
        return render(messages, form, variables)

    finder = _Finder(bounded, tools)
    finder.find_surroundings(source)
    for row in _ROWS:
        finder.find(row)
    return FoundForm(finder.form, {row.name: finder.outcome(row) for row in _ROWS})


def nearest_effort(level: str, levels: Sequence[str]) -> str:
    """Returns the level of `reasoning_effort` in `levels` that is nearest to `level`."""
    if level in levels or level not in EFFORTS or not levels:
        return level
    return min(levels, key=lambda known: abs(_rank(known) - _rank(level)))


def _rank(level: str) -> int:
    return 0 if level == _NO_THINKING else EFFORTS.index(level)


class _Finder:
    """Determines the form of one template by rendering histories."""

    def __init__(self, render: Render, tools: Sequence[Message]) -> None:
        self._render = render
        self._tools = tools
        self.form = TemplateForm()

    def find_surroundings(self, source: str) -> None:
        """Determines how content and tools are read, and the supported roles and levels of
        effort."""
        parts = {**_U1, "content": [{"type": "text", "text": "mark11mark"}]}
        self.find(_ROWS[0])
        raw = self._raw([parts])
        self.form = replace(self.form, iterates_parts="mark11mark" in raw and "type" not in raw)
        plain = self._text((_U1,)) or ""
        if self._tools:
            name = TRIED_TOOL["function"]["name"]
            told = replace(self.form, system_tools=True)
            if name not in plain + (self._text((_S1, _U1)) or ""):
                shown = name in (self._text((_S1, _U1), told) or "")
                self.form = told if shown else replace(self.form, shows_tools=False)
        roles = (ANY_ROLE, *sorted(set(_ROLE.findall(source)) - _STANDARD_ROLES)[:_MAX_ROLES])
        known = tuple(role for role in roles if self._knows(role))
        known = (ANY_ROLE,) if ANY_ROLE in known else known
        self.form = replace(self.form, roles=known, efforts=self._efforts())

    def find(self, row: Row) -> None:
        """Chooses the first way that shows all of a row's histories, or the one that shows most."""
        best, fewest = self.form, len(row.histories) + (not row.needs_thoughts)
        ways: Sequence[Way] = row.ways
        if row.echoed is not None and self._is_echoed(row.echoed):
            ways = sorted(ways, key=lambda way: SYSTEM not in way.values())
        for way in ways:
            form = replace(self.form, **way)
            failed = sum(self._fault(history, form, row) != "" for history in row.histories)
            if failed < fewest:
                best, fewest = form, failed
            if not failed:
                break
        self.form = best

    def outcome(self, row: Row) -> str:
        """Returns the renderings of a row's histories in the form that was found."""
        faults = [self._fault(history, self.form, row) for history in row.histories]
        if row.needs_thoughts:
            return NOT_KEPT if all(faults) else SHOWN
        if any(faults):
            return next(filter(None, faults))
        if any(adapt(history, self.form, self._tools).warnings for history in row.histories):
            return SHOWN_AS_TEXT
        names = {name for way in row.ways for name in way}
        default = TemplateForm()
        is_default = all(getattr(self.form, name) == getattr(default, name) for name in names)
        return SHOWN if is_default else ADAPTED

    def _raw(self, messages: Sequence[Message], **variables: object) -> str:
        try:
            return self._render(messages, self.form, {"tools": self._tools or None, **variables})
        except RequestError:
            return ""

    def _text(
        self, history: Sequence[Message], form: TemplateForm | None = None, **variables: object
    ) -> str | None:
        form = form or self.form
        try:
            adapted = adapt(history, form, self._tools)
            return self._render(adapted.messages, form, {"tools": self._tools or None, **variables})
        except RequestError:
            return None

    def _fault(self, history: Sequence[Message], form: TemplateForm, row: Row) -> str:
        """Returns why a history is not shown in a form; "" = it is shown."""
        try:
            messages = adapt(history, form, self._tools).messages
            text = self._render(messages, form, {"tools": self._tools or None, **row.variables})
        except RequestError as error:
            return str(error)
        wanted = json.dumps(history)
        wrong = [mark for mark in set(_MARK.findall(wanted)) if text.count(mark) != 1]
        wrong += [name for name in set(_NAME.findall(wanted)) if name not in text]
        for thought in _THOUGHT.findall(wanted):
            count = text.count(thought)
            if count > 1 or (row.needs_thoughts and not count):
                wrong.append(thought)
        if wrong:
            return f"{len(wrong)} texts of a history are lost or repeated"
        if _WRITTEN_PART.search(text):
            return "a list of parts is shown in place of a text"
        leading = next((i for i, m in enumerate(messages) if m["role"] not in _SPEAKERS), 0)
        places = [text.index(mark) for mark in _MARK.findall(json.dumps(messages[leading:]))]
        if places != sorted(places):
            return "the order of a history is changed"
        if row.has_arguments and form.calls != AS_TEXT:
            return self._call_fault(history, form, text)
        return ""

    def _call_fault(self, history: Sequence[Message], form: TemplateForm, text: str) -> str:
        """Returns why content cannot be None, or arguments cannot be JSON text, because the
        template has its own notation or writes them as a JSON string."""
        empty = self._text(history, replace(form, null_content=False)) or text
        if form.null_content and len(_JUNK.findall(text)) > len(_JUNK.findall(empty)):
            return "None or null is shown in place of a text"
        if not form.argument_objects:
            objects = self._text(history, replace(form, argument_objects=True))
            if not _JSON.search(text) or (objects and not _JSON.search(objects)):
                return "arguments are not shown as JSON"
        return ""

    def _knows(self, role: str) -> bool:
        stranger = _ECHOED if role == ANY_ROLE else role
        text = self._raw([_U1, _says(stranger, 12), _U3]) if not self.form.content_parts else ""
        return "mark12mark" in text

    def _is_echoed(self, history: Sequence[Message]) -> bool:
        """Returns whether the template repeats any role name, so that "developer" has no special
        meaning."""
        form = replace(self.form, leading=OWN, later=OWN, roles=(ANY_ROLE,))
        text = self._text(history, form)
        other = [{**m, "role": _ECHOED} if m["role"] == "developer" else m for m in history]
        echoed = self._text(other, form)
        return text is not None and text.replace("developer", _ECHOED) == echoed

    def _efforts(self) -> tuple[str, ...]:
        unknown = self._text((_U1,), reasoning_effort=_ECHOED)
        if unknown is not None:
            levels = ("low", "medium", "high")
            default = self._text((_U1,))
            has_default = default in [self._text((_U1,), reasoning_effort=e) for e in levels]
            return levels if _ECHOED in unknown and has_default else ()
        known = (*EFFORTS, _NO_THINKING)
        return tuple(e for e in known if self._text((_U1,), reasoning_effort=e) is not None)
