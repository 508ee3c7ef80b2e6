"""Renders chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from fastovms.errors import FastovmsError, InvalidField, RequestError
from fastovms.text.budget import FULL, Budget, LimitExceeded, Malformed, NeedsProcess
from fastovms.text.template_messages import (
    AS_TEXT,
    STRICT,
    USER,
    Message,
    ProbedForm,
    TemplateForm,
    WriteCall,
    adapt,
    nearest_effort,
    place_of,
)

_MAX_REASON: Final = 300
"""The maximum number of characters of a template's error that are shown: it may contain a whole
message."""

CHANGES: Final = re.compile(r"\.(?:append|pop|update)\b")
"""Matches calls of methods in a template's source that change values."""

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}
_EFFORT: Final = "reasoning_effort"
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""The text that is appended to the final message to find its end; transformers uses the same."""


class CallWriting(NamedTuple):
    """How tool calls are written in a prompt as text.

    Attributes:
        write: returns the text of a call that the template cannot show.
        are_all_written: whether all calls are written in this way, with their results as user
            turns.
    """

    write: WriteCall
    are_all_written: bool


class ChatTemplate:
    """The templates of one model. Rendering has no side effects; render long chats in a thread.

    Attributes:
        source: the template for chats without tools.
        tool_source: the template for chats with tools, from which formats are detected.
        budget: the budget that renderings spend.
        replaced: returns another template for the same model, given its source, which comes from a
            client and is only rendered in another process. Raises RequestError if it is too long.
    """

    def __init__(
        self,
        plain: PreparedTemplate,
        with_tools: PreparedTemplate,
        forms: Sequence[ProbedForm],
        tokens: Mapping[str, Any],
        budget: Budget,
        replaced: Callable[[str], ChatTemplate],
        *,
        is_foreign: bool = False,
    ) -> None:
        """
        Args:
            forms: the message forms of the templates without and with tools.
            tokens: the values of `bos_token` and other special tokens.
            is_foreign: whether the template comes from a request.
        """
        self.source, self.tool_source = plain.source, with_tools.source
        self.budget = budget
        self.replaced = replaced
        self._plain, self._with_tools = plain, with_tools
        self._plain_form, self._tool_form = forms
        self._tokens = tokens
        self._is_foreign = is_foreign

    @property
    def matrix(self) -> Mapping[str, str]:
        """The result for each kind of chat history: one of `OUTCOMES`, or the reason why the
        template cannot show that kind."""
        return self._tool_form.matrix

    @property
    def shows_tools(self) -> bool:
        """Whether the prompt contains the tools."""
        return self._tool_form.form.shows_tools

    @property
    def knows_effort(self) -> bool:
        """Whether the template reads `reasoning_effort`."""
        return _EFFORT in self.tool_source

    @property
    def has_system_turn(self) -> bool:
        """Whether the template supports system messages."""
        return self._plain_form.form.leading != USER

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        calls: CallWriting | None = None,
        warnings: list[str] | None = None,
    ) -> str:
        """Returns the prompt. It contains special tokens; encode it without adding any.

        Args:
            messages: in OpenAI's format: tool arguments as a JSON string, content as a string, None
                or a list of parts.
            tools: in OpenAI's format, `{"type": "function", "function": {...}}`.
            add_generation_prompt: whether to end with the beginning of the assistant's answer.
            continue_final_message: whether to end with the final message's content; excludes
                `add_generation_prompt`.
            kwargs: further variables: `chat_template_kwargs`.
            calls: writes calls that the template cannot show; None = as JSON.
            warnings: a list to which losses in rendering are appended.

        Raises:
            RequestError: the template refuses the chat, with its own message, or exceeds a limit.
            InvalidField: `kwargs` names a reserved variable, or two fields exclude each other.
            NeedsProcess: the rendering must be restarted in a process for templates.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidField.about(
                "continue_final_message", "and add_generation_prompt cannot both be true"
            )
        prepared = self._with_tools if tools else self._plain
        form = (self._tool_form if tools else self._plain_form).form
        noted = [] if warnings is None else warnings
        if calls is not None and calls.are_all_written:
            form = replace(form, calls=AS_TEXT, results=False)
        variables = self._variables(tools, documents, kwargs or {}, add_generation_prompt)
        if isinstance(level := variables.get(_EFFORT), str):
            variables[_EFFORT] = nearest_effort(level, form.efforts)
            if variables[_EFFORT] != level:
                noted.append(f"{_EFFORT}: the chat template has {variables[_EFFORT]}, not {level}")

        def render(messages: Sequence[Message], form: TemplateForm, notes: list[str]) -> str:
            adapted = adapt(messages, form, tools or (), None if calls is None else calls.write)
            notes += adapted.warnings
            if not continue_final_message:
                return prepared.render(adapted.messages, form, variables)
            tagged = _with_tag(messages, adapted.messages)
            return _cut_at_tag(prepared.render(tagged, form, variables))

        notes: list[str] = []
        try:
            with self.budget.of(FULL):
                try:
                    text = render(messages, form, notes)
                except TemplateFault as fault:
                    words = f"the chat template: {fault.reason}"
                    notes = [f"turns are merged and calls shown as text: {words}"]
                    form = replace(form, **STRICT)
                    try:
                        text = render(messages, form, notes)
                    except TemplateFault:
                        raise _placed(fault, messages, lambda m: render(m, form, [])) from fault
        except UnusableTemplate as error:
            raise error.named(is_foreign=self._is_foreign) from error
        noted += notes
        return text

    def _variables(
        self,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> dict[str, Any]:
        for name in kwargs:
            if name in _RESERVED or name in self._tokens:
                raise InvalidField.about(
                    f"chat_template_kwargs.{name}", "is not allowed: the server sets it"
                )
        return {
            **kwargs,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }


class PreparedTemplate:
    """A template that is ready to be rendered."""

    def __init__(
        self,
        source: str,
        compiled: Callable[[Mapping[str, Any]], str] | None,
        budget: Budget,
        *,
        tokens: Mapping[str, Any],
        now: Callable[[], datetime],
    ) -> None:
        """
        Args:
            compiled: renders the template, given its variables; None = it is only rendered in
                another process.
        """
        self.source = source
        self._compiled = compiled
        self._budget = budget
        self._tokens = tokens
        self._now = now
        self._changes = CHANGES.search(source) is not None
        self._is_firefunction = "functools[" in source

    def render(
        self, messages: Sequence[Message], form: TemplateForm, variables: Mapping[str, Any]
    ) -> str:
        """Renders adapted messages. Raises TemplateFault, UnusableTemplate or NeedsProcess."""
        every: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
        every |= {**self._tokens, **variables, "messages": messages}
        if form.empty_lists:
            every |= {name: every[name] or [] for name in ("tools", "documents")}
        outside = self._budget.outside
        if self._changes and outside is None:
            every = deepcopy(every)
        if self._is_firefunction:
            functions = [tool.get("function", tool) for tool in every["tools"] or ()]
            every.setdefault("functions", json.dumps(functions, ensure_ascii=False))
            every.setdefault("datetime", self._now().strftime("%B %d %Y %H:%M:%S"))
        try:
            if outside is not None:
                plain = {**every, "messages": [dict(message) for message in messages]}
                return outside(self.source, plain, self._budget)
            if self._compiled is None:
                raise NeedsProcess
            return self._compiled(every)
        except (MemoryError, NeedsProcess, FastovmsError):
            raise  # out of memory is not an error of the template
        except (LimitExceeded, Malformed) as error:
            raise UnusableTemplate(error) from error
        except Exception as error:  # the code of a template may raise any exception
            reason = str(error) or type(error).__name__
            if len(reason) > _MAX_REASON:
                reason = f"{reason[:_MAX_REASON]}..."
            raise TemplateFault(reason) from error


class TemplateFault(RequestError):
    """The template refuses a chat.

    Attributes:
        reason: the template's own message.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat template cannot render the messages: {reason}")
        self.reason = reason


class UnusableTemplate(RequestError):
    """A template exceeds a limit or is malformed, whatever the messages."""

    def __init__(self, cause: LimitExceeded | Malformed) -> None:
        is_limit = isinstance(cause, LimitExceeded)
        self._reason = str(cause) if is_limit else f"is malformed: {cause}"
        super().__init__(f"the chat template {self._reason}")

    def named(self, *, is_foreign: bool) -> InvalidField:
        """Returns the error for the client, which names the request's field."""
        if is_foreign:
            return InvalidField.about("chat_template", f"{self._reason}")
        return InvalidField(f"messages: the model's chat template {self._reason}", param="messages")


def _placed(
    fault: TemplateFault, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> InvalidField:
    """Returns the error with the path of the first message that the template refuses."""
    low, high = 0, len(messages) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            render(messages[: middle + 1])
        except RequestError:
            high = middle
        else:
            low = middle + 1
    place = place_of(messages[low], low) if messages else "messages"
    return InvalidField(f"the chat template cannot render {place}: {fault.reason}", param=place)


def _with_tag(
    messages: Sequence[Message], adapted: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the messages with a tag after the last text of the final message."""
    has_content = messages and messages[-1].get("content") is not None
    content = adapted[-1]["content"] if has_content else None
    if isinstance(content, str):
        return [*adapted[:-1], {**adapted[-1], "content": content + _CONTINUE}]
    parts = [dict(part) for part in content] if isinstance(content, list) else []
    for part in reversed(parts):
        if isinstance(part.get("text"), str):
            part["text"] += _CONTINUE
            return [*adapted[:-1], {**adapted[-1], "content": parts}]
    raise RequestError(
        "continue_final_message is set but the final message has no text to continue",
        param="continue_final_message",
    )


def _cut_at_tag(text: str) -> str:
    """Returns the prompt up to the tag. A template that strips messages has also stripped the tag's
    space; then the text ends after its last word."""
    at = text.rfind(_CONTINUE.strip())
    if at < 0:
        raise RequestError(
            "continue_final_message is set but the final message does not appear in the chat "
            "after applying the chat template",
            param="continue_final_message",
        )
    kept = text[:at]
    return kept if text.startswith(_CONTINUE, at) else kept.rstrip()
