"""Finds out which form of messages a template reads, and converts messages into it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

Message = Mapping[str, Any]
TryRender = Callable[[Sequence[Message]], str | None]
"""Renders messages with a tool; returns None if the template refuses them."""

_TEXT = "some-text"
_OTHER_TEXT = "other-text"
_ARGUMENTS = {"some_argument": 1}
_ARGUMENTS_TEXT = json.dumps(_ARGUMENTS)

_SYSTEM_TOOLS = re.compile(r"""["']tools["'] in message""")
_SHORT_ID = 9
_JSON_ARGUMENT = re.compile(r'"some_argument":\s*1')
_THINKING = re.compile(r"""\.thinking\b|["']thinking["']""")


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """What a template reads.

    Attributes:
        content_parts: whether content has to be a list of parts; else it has to be a string.
        iterates_parts: whether lists of parts are read, so that parts which are no text have a
            place.
        argument_objects: whether the arguments of calls are objects; else they are JSON text, which
            keeps them as the model wrote them.
        null_content: whether the content of a message that has only calls is None; else it is "".
        developer_role: whether there are messages of the developer; else they are the system's.
        several_system_messages: whether there may be several; else they are made one.
        thinking: whether reasoning is read from `thinking` too, as gpt-oss and LFM2 have it.
        short_ids: whether the ids of calls have nine letters and digits, as Mistral has it.
        system_tools: whether tools are read from the system message, as JSON text, as Phi 4 has it.
        shows_tools: whether tools are shown to the model.
        system_role: whether there are messages of the system.
    """

    content_parts: bool = False
    iterates_parts: bool = False
    argument_objects: bool = False
    null_content: bool = True
    developer_role: bool = False
    several_system_messages: bool = True
    thinking: bool = False
    short_ids: bool = False
    system_tools: bool = False
    shows_tools: bool = True
    system_role: bool = True


def find_form(source: str, render: TryRender, tool_name: str) -> TemplateForm:
    """Finds out what a template reads: by rendering, as llama.cpp does; the names of roles and
    members by looking for them in the source.

    Args:
        tool_name: the name of the tool that messages are rendered with.
    """
    part = [{"type": "text", "text": _TEXT}]
    takes_strings = _TEXT in (render([_user(_TEXT)]) or "")
    as_parts = render([_user(part)]) or ""
    takes_parts = _TEXT in as_parts and "'type'" not in as_parts and '"type"' not in as_parts
    content_parts = takes_parts and not takes_strings
    question = _user(part if content_parts else _TEXT)
    with_text = render([question, *_called(_ARGUMENTS_TEXT, "")]) or ""
    with_object = render([question, *_called(_ARGUMENTS, "")]) or ""
    # A template that writes arguments in a notation of its own may take text, but as that.
    is_json = not with_object or _JSON_ARGUMENT.search(with_object) is not None
    text_works = is_json and _ARGUMENTS_TEXT in with_text
    arguments = _ARGUMENTS_TEXT if text_works else _ARGUMENTS
    with_null = render([question, *_called(arguments, None)])
    with_long_id = render([question, *_called(arguments, "", call_id="call_some-longer-id")])
    system = [{"role": "system", "content": text} for text in (_TEXT, _OTHER_TEXT)]
    user = _user(part if content_parts else "")
    with_system = render([_in_parts(system[0]) if content_parts else system[0], question]) or ""
    reads_tools = _SYSTEM_TOOLS.search(source) is not None
    several = render([*(_in_parts(m) if content_parts else m for m in system), user]) or ""
    return TemplateForm(
        content_parts=content_parts,
        iterates_parts=takes_parts,
        argument_objects=not text_works and "some_argument" in with_object,
        null_content=with_null is not None and "None" not in with_null,
        developer_role="developer" in source,
        several_system_messages=_TEXT in several and _OTHER_TEXT in several,
        thinking=_THINKING.search(source) is not None,
        short_ids=with_long_id is None and (with_text if text_works else with_object) != "",
        system_tools=reads_tools,
        shows_tools=reads_tools or tool_name in (render([question]) or "") + with_system,
        system_role=with_system.count(_TEXT) > 1,
    )


def adapt(
    messages: Sequence[Message], form: TemplateForm, tools: Sequence[Message] = ()
) -> list[dict[str, Any]]:
    """Returns copies of messages in OpenAI's form, changed to what the template reads."""
    adapted = [_adapt(message, form) for message in messages]
    if not form.several_system_messages:
        adapted = _merged(adapted)
    if form.system_tools and tools:
        if not adapted or adapted[0].get("role") != "system":
            adapted.insert(0, {"role": "system", "content": ""})
        functions = [tool.get("function", tool) for tool in tools]
        adapted[0]["tools"] = json.dumps(functions, ensure_ascii=False)
    return adapted


def join_text(content: object) -> object:
    """Returns text parts as one string, a line each, as vLLM and OVMS have it; other content as it
    is."""
    if not isinstance(content, list):
        return content
    texts = [_text(part) for part in content]
    return "\n".join(text for text in texts if text is not None) if None not in texts else content


def _text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def _adapt(message: Message, form: TemplateForm) -> dict[str, Any]:
    adapted = dict(message)
    if adapted.get("role") == "developer" and not form.developer_role:
        adapted["role"] = "system"
    content = join_text(adapted.get("content"))
    if content is None and not form.null_content:
        content = ""
    adapted["content"] = content
    if form.content_parts:
        adapted = _in_parts(adapted)
    if form.short_ids and isinstance(adapted.get("tool_call_id"), str):
        adapted["tool_call_id"] = _short_id(adapted["tool_call_id"])
    calls = adapted.pop("tool_calls", None)
    if calls:
        adapted["tool_calls"] = [_adapt_call(call, form) for call in calls]
    reasoning = adapted.get("reasoning_content") or adapted.get("reasoning")
    if reasoning:
        adapted |= {"reasoning_content": reasoning, "reasoning": reasoning}
        # gpt-oss's template refuses content and thinking beside calls.
        if form.thinking and not (calls and content):
            adapted.setdefault("thinking", reasoning)
    return adapted


def _adapt_call(call: Message, form: TemplateForm) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if arguments in (None, ""):
        arguments = "{}"
    if form.argument_objects:
        arguments = _parsed(arguments)
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    adapted = {"type": "function", **call, "function": {**function, "arguments": arguments}}
    if form.short_ids and isinstance(adapted.get("id"), str):
        adapted["id"] = _short_id(adapted["id"])
    return adapted


def _short_id(call_id: str) -> str:
    """Returns a short id, the same one for the same id, so that a result finds its call."""
    if len(call_id) == _SHORT_ID and call_id.isalnum():
        return call_id
    return sha256(call_id.encode(errors="replace")).hexdigest()[:_SHORT_ID]


def _parsed(arguments: object) -> object:
    """Returns the object that a JSON text holds. What is no JSON object stays text, for the
    template to make of it what it can."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages with one system message at the beginning in place of all."""
    system = [m for m in messages if m.get("role") == "system"]
    texts = [join_text(m.get("content")) for m in system]
    if len(system) < 2 or not all(isinstance(text, str) for text in texts):
        return messages
    first = {**system[0], "content": "\n\n".join(map(str, texts))}
    if isinstance(system[0]["content"], list):
        first = _in_parts(first)
    return [first, *(m for m in messages if m.get("role") != "system")]


def _in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def _user(content: object) -> Message:
    return {"role": "user", "content": content}


def _called(arguments: object, content: str | None, call_id: str = "call00001") -> list[Message]:
    # Mistral's templates want ids of nine characters and a result after the call.
    function = {"name": "some_function", "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": content, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call_id, "name": "some_function", "content": _TEXT},
    ]
