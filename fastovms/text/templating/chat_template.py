"""Renders chat templates: turns messages into the prompt that the model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError

from fastovms.errors import ConfigurationError, FieldFault, InvalidField, RequestError
from fastovms.text.templating.template_environment import make_environment
from fastovms.text.templating.template_files import (
    DEFAULT,
    TOOL_USE,
    find_templates,
    read_text,
    special_tokens,
)
from fastovms.text.templating.template_messages import Message, TemplateForm, adapt, find_form
from fastovms.text.templating.template_sandbox import Sandbox

_MAX_REASON: Final = 300
"""Characters that are repeated of what a template says: it may repeat a whole message."""

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""What is put behind the final message to find its end. It is transformers' own word."""


_TRIED_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "some_function",
        "description": "Does something.",
        "parameters": {
            "type": "object",
            "properties": {"some_argument": {"type": "integer", "description": "A number."}},
            "required": ["some_argument"],
        },
    },
}


class ChatTemplate:
    """The templates of one model. Rendering is pure; a long chat belongs in a thread.

    Attributes:
        source: the template used without tools.
        tool_source: the template used with tools, by which formats are detected.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        tokens: Mapping[str, Any],
        *,
        content_format: str = "auto",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """
        Args:
            templates: sources by name; at least one.
            tokens: `bos_token` and so on.
            content_format: the form of the content of messages: "string", or "openai" for a list of
                parts; "auto" = what the template reads.
            now: tells the local time.

        Raises:
            ConfigurationError: a template is malformed.
        """
        self._tokens = dict(tokens)
        self._content_format = content_format
        self._now = now
        self.source = templates.get(DEFAULT) or next(iter(templates.values()))
        self.tool_source = templates.get(TOOL_USE) or self.source
        environment = make_environment(now)
        self._plain = _Prepared(environment, self.source, self._tokens, content_format)
        self._with_tools = self._plain
        if self.tool_source != self.source:
            self._with_tools = _Prepared(
                environment, self.tool_source, self._tokens, content_format
            )

    @property
    def shows_tools(self) -> bool:
        """Whether the model is shown the tools."""
        return self._with_tools.form.shows_tools

    @property
    def has_system_turn(self) -> bool:
        """Whether messages of the system have a place."""
        return self._plain.form.system_role

    @classmethod
    def load(
        cls,
        model_dir: Path,
        override: Path | str | None = None,
        *,
        content_format: str = "auto",
        now: Callable[[], datetime] = datetime.now,
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
        return cls(templates, special_tokens(model_dir), content_format=content_format, now=now)

    def replaced(self, source: str) -> ChatTemplate:
        """Returns another template for the same model.

        Raises:
            RequestError: it is malformed.
        """
        try:
            return ChatTemplate(
                {DEFAULT: source}, self._tokens, content_format=self._content_format, now=self._now
            )
        except ConfigurationError as error:
            raise RequestError(str(error), param="chat_template") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
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

        Raises:
            RequestError: the template refuses the chat, with its text.
            InvalidField: `kwargs` names a variable of our own, or two fields exclude each other.
        """
        variables = self._variables(tools, documents, kwargs or {})
        prepared = self._with_tools if tools else self._plain
        adapted = adapt(messages, prepared.form, tools or ())
        if not continue_final_message:
            return prepared.render(adapted, variables, add_generation_prompt)
        if add_generation_prompt:
            raise InvalidField(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        return _cut_at_tag(prepared.render(_with_tag(messages, adapted), variables, False))

    def _variables(
        self,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        for name in kwargs:
            if name in _RESERVED or name in self._tokens:
                raise InvalidField(
                    f"chat_template_kwargs.{name} is not allowed: the server sets it",
                    param=f"chat_template_kwargs.{name}",
                )
        return {
            **self._tokens,
            **kwargs,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
        }


class _Prepared:
    """A template and the form of its messages."""

    def __init__(
        self, environment: Sandbox, source: str, tokens: Mapping[str, Any], content_format: str
    ) -> None:
        self._environment = environment
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"the chat template is malformed: {error}") from error
        variables = {**tokens, "tools": [_TRIED_TOOL]}

        def try_render(messages: Sequence[Message]) -> str | None:
            try:
                return self.render(messages, variables, False)
            except RequestError:
                return None

        self.form: TemplateForm = find_form(source, try_render, _TRIED_TOOL["function"]["name"])
        if content_format != "auto":
            self.form = replace(self.form, content_parts=content_format == "openai")

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> str:
        every = {
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render(self._template, every)
        except (Exception, RecursionError, MemoryError) as error:  # whatever its code raises
            reason = str(error) or type(error).__name__
            if len(reason) > _MAX_REASON:
                reason = f"{reason[:_MAX_REASON]}..."
            raise FieldFault(
                "messages", f": {reason}", before="the chat template cannot render the "
            ) from error


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
