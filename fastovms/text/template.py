"""Chat templates: found in a model's files, checked, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import msgspec
import openvino_genai

from fastovms.errors import ConfigurationError, FastovmsError, InvalidField, RequestError
from fastovms.system.disk import DiskCache, key_of
from fastovms.text.sandbox import (
    CHANGES,
    FULL,
    Budget,
    LimitExceeded,
    Limits,
    Malformed,
    NeedsProcess,
    Sandbox,
    make_environment,
)
from fastovms.text.template_messages import (
    AS_TEXT,
    STRICT,
    TRIED_TOOL,
    USER,
    FoundForm,
    Message,
    TemplateForm,
    WriteCall,
    adapt,
    find_form,
    nearest_effort,
    place_of,
)

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"

_SPECIAL_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_END_TOKENS: Final = ("eos_token", "eot_token")
_TOKENIZER_XML: Final = "openvino_tokenizer.xml"


def find_templates(model_dir: Path) -> dict[str, str]:
    """Returns the sources by name, including `DEFAULT` if there is one. Searches like transformers,
    then in openvino_tokenizer.xml, like OpenVINO GenAI. Separate template files take precedence
    over JSON files. Raises ConfigurationError if a file is broken."""
    templates = _named(_runtime_info(model_dir).get("chat_template"))
    # A processor's template is that of a model with images; the tokenizer's goes before it.
    for name in ("processor_config.json", "chat_template.json", "tokenizer_config.json"):
        templates |= _named(read_json(model_dir / name).get("chat_template"))
    if (path := model_dir / "chat_template.jinja").is_file():
        templates[DEFAULT] = read_text(path)
    for path in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path)
    return templates


def _named(value: object) -> dict[str, str]:
    """Returns sources by name. `chat_template` is one source, or named ones: a list of objects, or
    an object."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict)]
        items = [(item.get("name"), item.get("template")) for item in objects]
    elif isinstance(value, dict):
        items = list(value.items())
    else:
        return {}
    return {str(name): source for name, source in items if isinstance(source, str)}


def special_tokens(model_dir: Path) -> dict[str, Any]:
    """Returns the values of `bos_token` and the other tokens in templates: tokenizer_config.json
    takes precedence over special_tokens_map.json, and that over the ids in
    openvino_tokenizer.xml."""
    found: dict[str, Any] = {}
    info = _runtime_info(model_dir)
    ids = {kind: _id(info, f"{kind}_token_id") for kind in _SPECIAL_TOKENS}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(model_dir / name)
        for kind in _SPECIAL_TOKENS:
            token = _token(config.get(f"{kind}_token"))
            if token is not None:
                found[f"{kind}_token"] = token
        extra = config.get("extra_special_tokens")
        if isinstance(extra, dict):
            found |= {key: _token(value) for key, value in extra.items() if _token(value)}
        more = config.get("additional_special_tokens")
        if isinstance(more, list):
            found["additional_special_tokens"] = [t for t in map(_token, more) if t]
    missing = {kind: i for kind, i in ids.items() if i is not None and f"{kind}_token" not in found}
    if missing:
        texts = {i: text for text, i in _token_ids(model_dir, ids=missing.values()).items()}
        found |= {f"{kind}_token": texts[i] for kind, i in missing.items() if i in texts}
    return found


def end_token_ids(model_dir: Path) -> frozenset[int]:
    """Returns the ids of the tokens that the tokenizer's files name as the end of a text or of a
    turn. Raises ConfigurationError if a file is broken."""
    texts: set[str] = set()
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json(model_dir / name)
        texts.update(text for key in _END_TOKENS if (text := _token(config.get(key))))
    token_ids = _token_ids(model_dir, texts=texts) if texts else {}
    found = {token_ids[text] for text in texts if text in token_ids}
    of_graph = _id(_runtime_info(model_dir), "eos_token_id")
    return frozenset(found if of_graph is None else found | {of_graph})


def _token_ids(
    model_dir: Path, texts: Collection[str] = (), ids: Collection[int] = ()
) -> Mapping[str, int]:
    """Returns token ids by text, including the wanted ones if a file has them. Large files are read
    only if the small ones lack some."""

    def is_complete() -> bool:
        return found.keys() >= set(texts) and set(found.values()) >= set(ids)

    added = read_json(model_dir / "tokenizer_config.json").get("added_tokens_decoder")
    pairs = added.items() if isinstance(added, dict) else ()
    found = {text: int(id) for id, token in pairs if (text := _token(token)) and id.isdecimal()}
    if not is_complete():
        tokenizer = read_json(model_dir / "tokenizer.json")
        for token in tokenizer.get("added_tokens") or ():
            found[str(token.get("content"))] = int(token.get("id", -1))
    if not is_complete() and (model_dir / _TOKENIZER_XML).is_file():
        try:
            vocab = openvino_genai.Tokenizer(model_dir).get_vocab()
        except RuntimeError as error:
            raise ConfigurationError(f"{model_dir}: the tokenizer cannot be loaded") from error
        found = {text.decode(errors="replace"): id for text, id in vocab.items()} | found
    return found


def _runtime_info(model_dir: Path) -> Mapping[str, str]:
    """Returns the members of `rt_info` in openvino_tokenizer.xml. Empty for a broken file, which is
    refused when the tokenizer is loaded."""
    path = model_dir / _TOKENIZER_XML
    if not path.is_file():
        return {}
    try:
        members = ElementTree.parse(path).getroot().find("rt_info")
    except (ElementTree.ParseError, OSError):
        return {}
    return {} if members is None else {each.tag: each.get("value", "") for each in members}


def _id(info: Mapping[str, str], name: str) -> int | None:
    value = info.get(name, "")
    return int(value) if value.isdecimal() else None


def _token(value: object) -> str | None:
    """Returns a token's text. The value is the text or an object that contains it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_text(path: Path) -> str:
    """Reads a file of UTF-8. Raises ConfigurationError if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; an empty one if the file does not exist. Raises ConfigurationError if
    the file cannot be read or holds no object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must be a JSON object")
    return value


_MAX_REASON: Final = 300
"""Characters that are repeated of what a template says: it may repeat a whole message."""

_MAX_REPLACED: Final = 8
"""Templates of requests whose forms are kept in memory."""

_MAX_SOURCE: Final = 256 * 1024
"""Characters of a template of a request: several times as many as those of models have."""

_PROBES: Final = Limits(1_000_000, 64_000_000)
"""The limits of the renderings by which the form of a model's template is found."""

_FORMS_VERSION: Final = 1
"""Changes with the rows of the matrix and the members of the form."""

_FORMS_FILE: Final = "forms.json"

_RESERVED: Final = {"messages", "tools", "documents", "add_generation_prompt"}
_EFFORT: Final = "reasoning_effort"
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""The text that is put after the final message to find its end. It is transformers' own word."""


class CallWriting(NamedTuple):
    """How tool calls are written into a prompt.

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
        source: the template used without tools.
        tool_source: the template used with tools, from which formats are detected.
        budget: is spent by renderings.
        replaced: returns another template for the same model, given its source, which comes from a
            client and is only rendered in another process. Raises RequestError if it is too long.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        tokens: Mapping[str, Any],
        *,
        content_format: str = "auto",
        now: Callable[[], datetime] = datetime.now,
        cache: DiskCache | None = None,
        budget: Budget | None = None,
        is_foreign: bool = False,
    ) -> None:
        """Raises ConfigurationError if a template is malformed.

        Args:
            templates: sources by name; at least one.
            tokens: the values of `bos_token` and other special tokens.
            content_format: the form of the content of messages: "string", or "openai" for a list of
                parts; "auto" = by the template.
            now: returns the local time.
            cache: stores the forms of templates on disk; None = not stored.
            budget: None = a budget of its own.
            is_foreign: whether the template comes from a request.
        """
        self.budget = budget or Budget()
        self._is_foreign = is_foreign
        self._tokens = dict(tokens)
        self._content_format = content_format
        self._now = now
        self.source = templates.get(DEFAULT) or next(iter(templates.values()))
        self.tool_source = templates.get(TOOL_USE) or self.source
        environment = None if is_foreign else make_environment(self.budget, now)
        prepare = partial(_Prepared, environment, self.budget, tokens=self._tokens, now=now)
        self._plain = self._with_tools = prepare(self.source)
        if self.tool_source != self.source:
            self._with_tools = prepare(self.tool_source)
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
    def knows_effort(self) -> bool:
        """Whether the template reads `reasoning_effort`."""
        return _EFFORT in self.tool_source

    @property
    def has_system_turn(self) -> bool:
        """Whether the template supports system messages."""
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
        model has none. Raises ConfigurationError if a file is broken or a template malformed."""
        templates = find_templates(model_dir)
        if override is not None:
            source = override if isinstance(override, str) else read_text(override)
            templates = {DEFAULT: source}
        if not any(templates.values()):
            return None
        tokens = special_tokens(model_dir)
        return cls(templates, tokens, content_format=content_format, now=now, cache=cache)

    def _replaced(self, source: str) -> ChatTemplate:
        if len(source) > _MAX_SOURCE:
            raise RequestError(
                f"chat_template must have at most {_MAX_SOURCE} characters, not {len(source)}",
                param="chat_template",
            )
        return ChatTemplate(
            {DEFAULT: source},
            self._tokens,
            content_format=self._content_format,
            now=self._now,
            budget=self.budget,
            is_foreign=True,
        )

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
            with self.budget.of(_PROBES):
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
        calls: CallWriting | None = None,
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
            calls: how to write calls that the template cannot show; None = as JSON.
            warnings: a list to which losses in rendering are added.

        Raises:
            RequestError: the template refuses the chat, with its text, or exceeds a limit.
            InvalidField: `kwargs` names a reserved variable, or two fields exclude each other.
            NeedsProcess: the rendering must run again where the budget names another process.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidField(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
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
        environment: Sandbox | None,
        budget: Budget,
        source: str,
        *,
        tokens: Mapping[str, Any],
        now: Callable[[], datetime],
    ) -> None:
        """
        Args:
            environment: None = the template is only rendered in another process.
        """
        self._environment = environment
        self._budget = budget
        self._source = source
        self._tokens = tokens
        self._now = now
        self._changes = CHANGES.search(source) is not None
        self._is_firefunction = "functools[" in source
        try:
            self._template = None if environment is None else environment.from_string(source)
        except Exception as error:  # whatever a compiler raises
            raise ConfigurationError(f"the chat template is malformed: {error}") from error

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
                return outside.render(self._source, plain, self._budget)
            if self._environment is None or self._template is None:
                raise NeedsProcess
            return self._environment.render(self._template, every)
        except (MemoryError, NeedsProcess, FastovmsError):
            raise  # without memory the request is refused, whatever its template is
        except (LimitExceeded, Malformed) as error:
            raise UnusableTemplate(error) from error
        except Exception as error:  # whatever its code raises
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


class UnusableTemplate(RequestError):
    """A template exceeds a limit, or is malformed, whatever the messages are."""

    def __init__(self, cause: LimitExceeded | Malformed) -> None:
        is_limit = isinstance(cause, LimitExceeded)
        self._reason = str(cause) if is_limit else f"is malformed: {cause}"
        super().__init__(f"the chat template {self._reason}")

    def named(self, *, is_foreign: bool) -> InvalidField:
        """Returns the error for the client, which names the field."""
        if is_foreign:
            return InvalidField(f"chat_template {self._reason}", param="chat_template")
        return InvalidField(f"messages: the model's chat template {self._reason}", param="messages")


def _placed(
    fault: TemplateFault, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> InvalidField:
    """Returns the error with the name of the first message that the template refuses."""
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
    """Returns the messages with the tag after the last text of the final one."""
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
