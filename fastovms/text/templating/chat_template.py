"""Renders chat templates: turns messages into the prompt that the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import TemplateError

from fastovms.errors import ConfigurationError, InvalidField, RequestError
from fastovms.system.disk_cache import DiskCache, key_of
from fastovms.text.templating.template_environment import make_environment
from fastovms.text.templating.template_files import (
    DEFAULT,
    TOOL_USE,
    find_templates,
    read_text,
    special_tokens,
)
from fastovms.text.templating.template_form import (
    TRIED_TOOL,
    FoundForm,
    find_form,
    nearest_effort,
)
from fastovms.text.templating.template_messages import (
    AS_TEXT,
    STRICT,
    USER,
    Message,
    TemplateForm,
    WriteCall,
    adapt,
    place_of,
)
from fastovms.text.templating.template_sandbox import CHANGES, Sandbox

_MAX_REASON: Final = 300
"""Characters that are repeated of what a template says: it may repeat a whole message."""

_MAX_REPLACED: Final = 8
"""Templates of requests whose forms are kept in memory."""

_FORMS_VERSION: Final = 1
"""Changes with the rows of the matrix and the members of the form."""

_FORMS_FILE: Final = "forms.json"

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}
_EFFORT: Final = "reasoning_effort"
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""What is put behind the final message to find its end. It is transformers' own word."""


class ChatTemplate:
    """The templates of one model. Rendering is pure; a long chat belongs in a thread.

    Attributes:
        source: the template used without tools.
        tool_source: the template used with tools, by which formats are detected.
        replaced: returns another template for the same model, given its source. Raises RequestError
            if it is malformed.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        tokens: Mapping[str, Any],
        *,
        content_format: str = "auto",
        now: Callable[[], datetime] = datetime.now,
        cache: DiskCache | None = None,
    ) -> None:
        """
        Args:
            templates: sources by name; at least one.
            tokens: `bos_token` and so on.
            content_format: the form of the content of messages: "string", or "openai" for a list of
                parts; "auto" = what the template reads.
            now: tells the local time.
            cache: keeps the forms of templates on disk; None = they are found out anew.

        Raises:
            ConfigurationError: a template is malformed.
        """
        self._tokens = dict(tokens)
        self._content_format = content_format
        self._now = now
        self.source = templates.get(DEFAULT) or next(iter(templates.values()))
        self.tool_source = templates.get(TOOL_USE) or self.source
        environment = make_environment(now)
        self._plain = self._with_tools = _Prepared(environment, self.source, self._tokens, now)
        if self.tool_source != self.source:
            self._with_tools = _Prepared(environment, self.tool_source, self._tokens, now)
        self._plain_form, self._tool_form = self._found(cache or DiskCache(None))
        self.replaced = lru_cache(_MAX_REPLACED)(self._replaced)

    @property
    def matrix(self) -> Mapping[str, str]:
        """The outcomes of the kinds of histories: one of `OUTCOMES` each, or a reason why the kind
        is not shown."""
        return self._tool_form.matrix

    @property
    def shows_tools(self) -> bool:
        """Whether the model is shown the tools."""
        return self._tool_form.form.shows_tools

    @property
    def has_system_turn(self) -> bool:
        """Whether messages of the system have a place."""
        return self._plain_form.form.leading != USER

    @classmethod
    def load(
        cls,
        model_dir: Path,
        override: Path | str | None = None,
        *,
        content_format: str = "auto",
        now: Callable[[], datetime] = datetime.now,
        cache: DiskCache | None = None,
    ) -> ChatTemplate | None:
        """Returns the model's templates, or `override`, a file or a template itself; None if the
        model has none.

        Raises:
            ConfigurationError: a file is broken or a template malformed.
        """
        templates = find_templates(model_dir)
        if override is not None:
            source = override if isinstance(override, str) else read_text(override)
            templates = {DEFAULT: source}
        if not any(templates.values()):
            return None
        tokens = special_tokens(model_dir)
        return cls(templates, tokens, content_format=content_format, now=now, cache=cache)

    def _replaced(self, source: str) -> ChatTemplate:
        try:
            return ChatTemplate(
                {DEFAULT: source}, self._tokens, content_format=self._content_format, now=self._now
            )
        except ConfigurationError as error:
            raise RequestError(str(error), param="chat_template") from error

    def _found(self, cache: DiskCache) -> Sequence[FoundForm]:
        """Returns the forms of the templates without and with tools, from the cache if possible."""
        key = key_of(_FORMS_VERSION, self.source, self.tool_source, self._tokens)
        entry = cache.find("template", key)
        if entry is not None:
            try:
                data = (entry / _FORMS_FILE).read_bytes()
                found = msgspec.json.decode(data, type=tuple[FoundForm, FoundForm])
            except (OSError, msgspec.DecodeError):
                cache.discard(entry)
                entry = None
        if entry is None:
            found = (
                find_form(self.source, self._plain.render, ()),
                find_form(self.tool_source, self._with_tools.render, (TRIED_TOOL,)),
            )
            data = json.dumps([asdict(form) for form in found]).encode()
            cache.put("template", key, lambda entry: _write(entry / _FORMS_FILE, data))
        if self._content_format == "auto":
            return found
        has_parts = self._content_format == "openai"
        return [replace(f, form=replace(f.form, content_parts=has_parts)) for f in found]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        write_call: WriteCall | None = None,
        writes_calls: bool = False,
        warnings: list[str] | None = None,
    ) -> str:
        """Returns the prompt. Special tokens are in it; encode it without adding any.

        Args:
            messages: in OpenAI's form: tool arguments as JSON text, content as text, None or a list
                of parts.
            tools: in OpenAI's form, `{"type": "function", "function": {...}}`.
            add_generation_prompt: whether to end with the beginning of the assistant's answer.
            continue_final_message: whether to end with the final message's content; excludes the
                former.
            kwargs: further variables: `chat_template_kwargs`.
            write_call: writes the calls that the template cannot show; None = as JSON.
            writes_calls: whether all calls are written, and their results are turns of the user.
            warnings: is extended by what the template cannot show as the client sent it.

        Raises:
            RequestError: the template refuses the chat, with its text.
            InvalidField: `kwargs` names a variable of our own, or two fields exclude each other.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidField(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        prepared = self._with_tools if tools else self._plain
        form = (self._tool_form if tools else self._plain_form).form
        noted = [] if warnings is None else warnings
        if writes_calls:
            form = replace(form, calls=AS_TEXT, results=False)
        variables = self._variables(tools, documents, kwargs or {}, add_generation_prompt)
        if isinstance(level := variables.get(_EFFORT), str):
            variables[_EFFORT] = nearest_effort(level, form.efforts)
            if variables[_EFFORT] != level:
                noted.append(f"{_EFFORT}: the chat template has {variables[_EFFORT]}, not {level}")

        def render(messages: Sequence[Message], form: TemplateForm, notes: list[str]) -> str:
            adapted = adapt(messages, form, tools or (), write_call)
            notes += adapted.warnings
            if not continue_final_message:
                return prepared.render(adapted.messages, form, variables)
            tagged = _with_tag(messages, adapted.messages)
            return _cut_at_tag(prepared.render(tagged, form, variables))

        notes: list[str] = []
        try:
            text = render(messages, form, notes)
        except TemplateFault as fault:
            notes = [f"turns are merged and calls shown as text: the chat template: {fault.reason}"]
            form = replace(form, **STRICT)
            try:
                text = render(messages, form, notes)
            except TemplateFault:
                raise _placed(fault, messages, lambda m: render(m, form, [])) from fault
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
                raise InvalidField(
                    f"chat_template_kwargs.{name} is not allowed: the server sets it",
                    param=f"chat_template_kwargs.{name}",
                )
        return {
            **kwargs,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": add_generation_prompt,
        }


class _Prepared:
    """A template, ready to be rendered."""

    def __init__(
        self,
        environment: Sandbox,
        source: str,
        tokens: Mapping[str, Any],
        now: Callable[[], datetime],
    ) -> None:
        self._environment = environment
        self._tokens = tokens
        self._now = now
        self._changes = CHANGES.search(source) is not None
        self._is_firefunction = "functools[" in source
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"the chat template is malformed: {error}") from error

    def render(
        self, messages: Sequence[Message], form: TemplateForm, variables: Mapping[str, Any]
    ) -> str:
        """Renders adapted messages. Raises TemplateFault."""
        every: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
        every |= {**self._tokens, **variables, "messages": messages}
        if form.empty_lists:
            every |= {name: every[name] or [] for name in ("tools", "documents")}
        if self._changes:
            every = deepcopy(every)
        if self._is_firefunction:
            functions = [tool.get("function", tool) for tool in every["tools"] or ()]
            every.setdefault("functions", json.dumps(functions, ensure_ascii=False))
            every.setdefault("datetime", self._now().strftime("%B %d %Y %H:%M:%S"))
        try:
            return self._environment.render(self._template, every)
        except (Exception, RecursionError, MemoryError) as error:  # whatever its code raises
            reason = str(error) or type(error).__name__
            if len(reason) > _MAX_REASON:
                reason = f"{reason[:_MAX_REASON]}..."
            raise TemplateFault(reason) from error


class TemplateFault(RequestError):
    """The template refuses a chat.

    Attributes:
        reason: the template's own words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat template cannot render the messages: {reason}")
        self.reason = reason


def _placed(
    fault: TemplateFault, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> InvalidField:
    """Returns the fault of the first message that the template refuses with those before it."""
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


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _with_tag(
    messages: Sequence[Message], adapted: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the messages with the tag behind the last text of the final one."""
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
    """Returns the prompt up to the tag. A template that trims messages has trimmed the tag's space
    too; then the text ends where its last word does."""
    at = text.rfind(_CONTINUE.strip())
    if at < 0:
        raise RequestError(
            "continue_final_message is set but the final message does not appear in the chat "
            "after applying the chat template",
            param="continue_final_message",
        )
    kept = text[:at]
    return kept if text.startswith(_CONTINUE, at) else kept.rstrip()
