"""Finds out in which form a template expects messages, by rendering sample chat histories."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final

from fastovms.errors import RequestError
from fastovms.text.template_messages import (
    ANSWER,
    ANY_ROLE,
    AS_TEXT,
    BEFORE,
    BEFORE_USER,
    EFFORTS,
    NO_THINKING,
    ONE_BY_ONE,
    OWN,
    PARTS,
    RESULT,
    SPEAKERS,
    SYSTEM,
    USER,
    Message,
    ProbedForm,
    TemplateForm,
    adapt,
)

Render = Callable[[Sequence[Message], TemplateForm, Mapping[str, Any]], str]
"""Renders adapted messages with tools and further variables. Raises RequestError."""

Way = Mapping[str, Any]
"""Fields of a `TemplateForm`, by name."""

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
"""The maximum CPU seconds for the matrix of a template. The slowest of 99 public templates takes
0.3 s."""

_JSON: Final = re.compile(r'(?<!\\)"place":\s*"mark51mark"')

SHOWN: Final = "shown"
ADAPTED: Final = "adapted"
SHOWN_AS_TEXT: Final = "shown as text"
NOT_KEPT: Final = "not kept"
OUTCOMES: Final = (SHOWN, ADAPTED, SHOWN_AS_TEXT, NOT_KEPT)


def _marked_message(role: str, number: int) -> Message:
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
    return {**_marked_message("tool", number), "tool_call_id": f"call-of-another-server-{of}"}


_SWITCHES: Final = {
    **dict.fromkeys(("thinking", "enable_thinking", "add_thoughts"), True),
    **dict.fromkeys(("preserve_thinking", "keep_past_thinking"), True),
    "clear_thinking": False,
    "think_render_option": "all",
    "reasoning_effort": "high",
}
"""Variables by which templates keep the reasoning of earlier turns."""

_THINKS: Final = {"reasoning_content": "thought1thought"}
_U1, _U2, _U3 = (_marked_message("user", number) for number in (11, 12, 13))
_A1, _A2 = (_marked_message("assistant", number) for number in (21, 22))
_S1, _S2 = (_marked_message("system", number) for number in (31, 32))
_D1, _D2 = (_marked_message("developer", number) for number in (41, 42))
_CALL, _R1, _R2 = _calls(51), _result(61, 51), _result(62, 52)
_CUT, _LIST = '{"place": "mark51mark', '["mark51mark", 2]'


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix: a kind of chat history.

    Attributes:
        ways: the possible forms, best first; the first form that shows all histories is used.
        needs_reasoning: whether the reasoning must be shown.
        has_arguments: whether the notation of arguments matters.
        variables: further variables of the template.
        echoed: a history that shows whether the template has developer turns.
    """

    name: str
    histories: tuple[tuple[Message, ...], ...]
    ways: tuple[Way, ...] = ({},)
    needs_reasoning: bool = False
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
        ((_U1, _calls(51, 52), _R1, _R2), (_U1, _calls(51, 52), _R1, _R2, _A1, _U2)),
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
        "text next to a call",
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
        needs_reasoning=True,
        variables=_SWITCHES,
    ),
    Row(
        "reasoning and text next to a call",
        ((_U1, {**_calls(51, content="mark21mark"), **_THINKS}, _R1),),
        ({}, {"joins_reasoning": True}),
        needs_reasoning=True,
        variables=_SWITCHES,
    ),
)


def find_form(
    source: str,
    render: Render,
    tools: Sequence[Message],
    clock: Callable[[], float] = time.thread_time,
) -> ProbedForm:
    """Returns the form of a template. After `_MAX_SECONDS` the search ends, and the rest of the
    form keeps its defaults.

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
    finder.find_content_and_roles(source)
    for row in _ROWS:
        finder.find(row)
    return ProbedForm(finder.form, {row.name: finder.outcome(row) for row in _ROWS})


class _Finder:
    """Determines the form of one template by rendering histories."""

    def __init__(self, render: Render, tools: Sequence[Message]) -> None:
        self._render = render
        self._tools = tools
        self.form = TemplateForm()

    def find_content_and_roles(self, source: str) -> None:
        """Determines how content and tools are read, and the supported roles and levels of
        effort."""
        parts = {**_U1, "content": [{"type": "text", "text": "mark11mark"}]}
        self.find(_ROWS[0])
        raw = self._raw([parts])
        self.form = replace(self.form, iterates_parts="mark11mark" in raw and "type" not in raw)
        plain = self._text((_U1,)) or ""
        if self._tools:
            name = TRIED_TOOL["function"]["name"]
            supported = replace(self.form, system_tools=True)
            if name not in plain + (self._text((_S1, _U1)) or ""):
                shown = name in (self._text((_S1, _U1), supported) or "")
                self.form = supported if shown else replace(self.form, shows_tools=False)
        roles = (ANY_ROLE, *sorted(set(_ROLE.findall(source)) - _STANDARD_ROLES)[:_MAX_ROLES])
        known = tuple(role for role in roles if self._knows(role))
        known = (ANY_ROLE,) if ANY_ROLE in known else known
        self.form = replace(self.form, roles=known, efforts=self._efforts())

    def find(self, row: Row) -> None:
        """Chooses the first form that shows all of a row's histories, or the one that shows
        most."""
        best, fewest = self.form, len(row.histories) + (not row.needs_reasoning)
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
        """Returns the result for a row's histories in the chosen form: one of `OUTCOMES`, or the
        reason why they are not shown."""
        faults = [self._fault(history, self.form, row) for history in row.histories]
        if row.needs_reasoning:
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
            if count > 1 or (row.needs_reasoning and not count):
                wrong.append(thought)
        if wrong:
            return f"{len(wrong)} texts of a history are lost or repeated"
        if _WRITTEN_PART.search(text):
            return "a list of parts is shown instead of a text"
        leading = next((i for i, m in enumerate(messages) if m["role"] not in SPEAKERS), 0)
        places = [text.index(mark) for mark in _MARK.findall(json.dumps(messages[leading:]))]
        if places != sorted(places):
            return "the order of a history is changed"
        if row.has_arguments and form.calls != AS_TEXT:
            return self._call_fault(history, form, text)
        return ""

    def _call_fault(self, history: Sequence[Message], form: TemplateForm, text: str) -> str:
        """Returns why content cannot be None, or arguments cannot be a JSON string, because the
        template has its own notation or writes them as a JSON string; "" = no fault."""
        empty = self._text(history, replace(form, null_content=False)) or text
        if form.null_content and len(_JUNK.findall(text)) > len(_JUNK.findall(empty)):
            return "None or null is shown instead of a text"
        if not form.argument_objects:
            objects = self._text(history, replace(form, argument_objects=True))
            if not _JSON.search(text) or (objects and not _JSON.search(objects)):
                return "arguments are not shown as JSON"
        return ""

    def _knows(self, role: str) -> bool:
        stranger = _ECHOED if role == ANY_ROLE else role
        text = (
            self._raw([_U1, _marked_message(stranger, 12), _U3])
            if not self.form.content_parts
            else ""
        )
        return "mark12mark" in text

    def _is_echoed(self, history: Sequence[Message]) -> bool:
        """Returns whether the template writes unknown role names unchanged into the prompt. If so,
        it has no special support for the role "developer"."""
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
        known = (*EFFORTS, NO_THINKING)
        return tuple(e for e in known if self._text((_U1,), reasoning_effort=e) is not None)
