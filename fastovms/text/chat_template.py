"""Chat templates: messages to the prompt that the model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Template, TemplateError

from fastovms.errors import ConfigurationError, InvalidField, RequestError
from fastovms.text.template_environment import make_environment
from fastovms.text.template_files import (
    DEFAULT,
    TOOL_USE,
    find_templates,
    read_text,
    special_tokens,
)

Message = Mapping[str, Any]

MAX_PROMPT_LENGTH = 64 * 1024 * 1024
"""Characters that a template may write."""

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""Put behind the final message to find its end. transformers' own word."""


class ChatTemplate:
    """The templates of one model. Rendering is pure; a long chat belongs in a thread.

    Attributes:
        source: of the template used without tools.
        tool_source: of the one used with tools; that by which formats are detected.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        tokens: Mapping[str, Any],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """
        Args:
            templates: sources by name; at least one.
            tokens: `bos_token` and so on.
            now: the local time.

        Raises:
            ConfigurationError: a template is malformed.
        """
        self._tokens = dict(tokens)
        self.source = templates.get(DEFAULT) or next(iter(templates.values()))
        self.tool_source = templates.get(TOOL_USE) or self.source
        environment = make_environment(now)
        try:
            self._template = environment.from_string(self.source)
            self._tool_template = environment.from_string(self.tool_source)
        except TemplateError as error:
            raise ConfigurationError(f"the chat template is malformed: {error}") from error

    @classmethod
    def load(
        cls,
        model_dir: Path,
        override: Path | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> ChatTemplate | None:
        """The model's templates, or the file `override`; None if the model has none.

        Raises:
            ConfigurationError: a file is broken or a template malformed.
        """
        templates = find_templates(model_dir)
        if override is not None:
            templates = {DEFAULT: read_text(override)}
        if not any(templates.values()):
            return None
        return cls(templates, special_tokens(model_dir), now=now)

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
        """The prompt. Special tokens are in it; encode it without adding any.

        Args:
            messages: in OpenAI's form: tool arguments as JSON text, content as text, None or a
                list of parts.
            tools: in OpenAI's form, `{"type": "function", "function": {...}}`.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: end with the final message's content; excludes the former.
            kwargs: further variables: `chat_template_kwargs`.

        Raises:
            RequestError: the template refuses the chat, with its text.
            InvalidField: `kwargs` names a variable of our own, or two fields exclude each other.
        """
        variables = self._variables(messages, tools, documents, kwargs or {})
        template = self._tool_template if tools else self._template
        if not continue_final_message:
            return _render(template, variables, add_generation_prompt)
        if add_generation_prompt:
            raise InvalidField(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        variables["messages"] = _with_tag(messages)
        return _cut_at_tag(_render(template, variables, False))

    def _variables(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        for name in kwargs:
            if name in _RESERVED or name in self._tokens:
                raise InvalidField(
                    f"chat_template_kwargs must not name {name!r}, which the server sets",
                    param=f"chat_template_kwargs.{name}",
                )
        return {
            **self._tokens,
            **kwargs,
            "messages": [dict(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
        }


def _render(template: Template, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(**variables, add_generation_prompt=add_generation_prompt):
            length += len(piece)
            if length > MAX_PROMPT_LENGTH:
                raise _refused(f"the prompt is longer than {MAX_PROMPT_LENGTH} characters")
            pieces.append(piece)
    except RequestError:
        raise
    except (Exception, RecursionError, MemoryError) as error:  # whatever a template's code raises
        raise _refused(str(error) or type(error).__name__) from error
    return "".join(pieces)


def _refused(reason: str) -> RequestError:
    return RequestError(f"the chat template cannot render the messages: {reason}", param="messages")


def _with_tag(messages: Sequence[Message]) -> list[dict[str, Any]]:
    copies = [dict(message) for message in messages]
    final = copies[-1]
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _CONTINUE
        return copies
    parts = [dict(part) for part in content] if isinstance(content, list) else []
    for part in reversed(parts):
        if isinstance(part.get("text"), str):
            part["text"] += _CONTINUE
            final["content"] = parts
            return copies
    raise RequestError(
        "continue_final_message is set but the final message has no text to continue",
        param="continue_final_message",
    )


def _cut_at_tag(text: str) -> str:
    """A template that trims messages has trimmed the tag's space too; then the text ends where
    its last word does."""
    at = text.rfind(_CONTINUE.strip())
    if at < 0:
        raise RequestError(
            "continue_final_message is set but the final message does not appear in the chat "
            "after applying the chat template",
            param="continue_final_message",
        )
    kept = text[:at]
    return kept if text.startswith(_CONTINUE, at) else kept.rstrip()
