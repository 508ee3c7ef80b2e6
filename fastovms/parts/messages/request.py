"""Converts requests of Anthropic's Messages API (fields, content blocks and tools) to chat
messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple

from fastovms.api.body import one_of, optional, show, typed, wrong
from fastovms.api.chat_messages import (
    ChatMessages,
    ContentPart,
    Message,
    check_results,
    join_parts,
    summary_text,
    unseal,
)
from fastovms.api.chat_tools import (
    ToolChoice,
    ToolReader,
    ToolUse,
    check_number_of_tools,
    flat_name,
    read_function,
    read_name,
)
from fastovms.api.client_request import RequestDocument
from fastovms.api.client_tools import anthropic_tool
from fastovms.api.image_parts import ImageSource, RequestImages, UnreadableParts
from fastovms.api.request_schemas import GENERATION_MEMBERS, GenerationFields, Uint32
from fastovms.api.unread import Members, known
from fastovms.errors import InvalidField
from fastovms.text.template_messages import PlacedMessage


def _block(*names: str, **inner: Members) -> Members:
    return known("type", "cache_control", *names, **inner)


_PARTS: Final = {
    "text": _block("text", "citations"),
    "image": _block(source=known("type", "media_type", "data", "url", "file_id")),
    "document": _block(
        "title",
        "context",
        "citations",
        source=known("type", "media_type", "data", "url", "file_id", "content"),
    ),
    "search_result": _block("content", "title", "source", "citations"),
}
_BLOCKS: Final = Members(
    kinds={
        **_PARTS,
        "thinking": _block("thinking", "signature"),
        "tool_use": _block("id", "name", "input", "caller", "toolset_name"),
        "tool_result": _block("tool_use_id", "is_error", content=Members(kinds=_PARTS)),
    }
)
_TOOL: Final = _block("name", "description", "input_schema", "strict", "eager_input_streaming")


class MessagesRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /messages`. Fields of the server's other endpoints are accepted, too."""

    MEMBERS: ClassVar[Members] = Members(
        {
            **GENERATION_MEMBERS,
            "messages": known("role", content=_BLOCKS),
            "system": Members(kinds=_PARTS),
            "tools": Members(kinds={"": _TOOL, "custom": _TOOL}),
            "tool_choice": known("type", "name", "disable_parallel_tool_use"),
            "thinking": known("type", "budget_tokens", "display"),
            "output_config": known("effort", "format"),
            "context_management": known("edits"),
        }
    )

    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    max_tokens: Uint32 = None
    stop_sequences: list[str] | None = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    inference_geo: str | None = None
    speed: str | None = None
    diagnostics: dict[str, Any] | None = None

    mcp_servers: list[Any] | None = None
    container: Any = None
    thread: dict[str, Any] | None = None
    compaction: dict[str, Any] | None = None


class CountTokensRequest(MessagesRequest, frozen=True, kw_only=True):
    """The body of `POST /messages/count_tokens`. Only the fields of the prompt are used."""


_TOOL_CHOICES: Final = ("auto", "any", "tool", "none")


def read_tools(
    given: Sequence[Mapping[str, Any]] | None, choice: Mapping[str, Any] | None
) -> ToolUse:
    """Returns the tools and the tool choice. Tools that run on Anthropic's servers are ignored.
    Raises InvalidField if a tool or the choice is malformed, or they contradict each other."""
    check_number_of_tools(given, "tools")
    reader = ToolReader()
    for position, tool in enumerate(given or ()):
        place, kind = f"tools[{position}]", tool.get("type")
        kind = optional(kind, str, f"{place}.type")
        if kind in (None, "custom"):
            reader.add(read_function(_function(tool, place), place, schema="input_schema"), place)
        elif offered := anthropic_tool(tool, place):
            for each in offered:
                reader.add(each, place)
        else:
            reader.skip(kind, place)
    chosen, is_parallel = _choice({"type": "auto"} if choice is None else choice, reader)
    return reader.use(chosen, is_parallel=is_parallel)


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    schema = typed(tool.get("input_schema"), dict, f"{place}.input_schema")
    function = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {**function, "parameters": schema}


def _choice(choice: Mapping[str, Any], reader: ToolReader) -> tuple[ToolChoice, bool]:
    """Returns the tool choice, and whether parallel calls are allowed."""
    place, offered = "tool_choice", list(reader.offered)
    kind = one_of(choice.get("type"), _TOOL_CHOICES, f"{place}.type")
    is_single = optional(
        choice.get("disable_parallel_tool_use"), bool, f"{place}.disable_parallel_tool_use"
    )
    is_parallel = not is_single
    if kind == "none":
        return ToolChoice([]), is_parallel
    if kind == "auto":
        return ToolChoice(offered), is_parallel
    if not offered:
        raise InvalidField.about(place, "is only allowed with tools")
    if kind == "any":
        return ToolChoice(offered, is_required=True), is_parallel
    called = read_name(choice, place)
    if called in offered:
        return ToolChoice([called], is_required=True, is_named=True), is_parallel
    # The choice may name a toolset (a namespace), or one of its tools by its short name.
    targets = {name: tool.target for name, tool in reader.offered.items()}
    found = [name for name, target in targets.items() if called in (target.namespace, target.name)]
    if not found:
        raise InvalidField.about(place, f"names {show(called)}, which is not among the tools")
    return ToolChoice(found, is_required=True, is_named=len(found) == 1), is_parallel


_RESULT: Final = "_tool_result"
"""The suffix of the block types that hold results of server-side tools."""

_SEALED: Final = "encrypted_"
"""The prefix of the names of members that only Anthropic can read."""


def server_result(block: Block, reader: BlockReader) -> Message:
    """Returns the result of a server-side tool as a message, without encrypted parts. Raises
    InvalidField if the block is malformed."""
    call_id, content = block.filled_text("tool_use_id"), block.members.get("content")
    if isinstance(content, dict):  # an error, files, or tools that were found
        return _message(call_id, json.dumps(_readable(content), ensure_ascii=False))
    texts = []
    for inner in read_blocks(content, f"{block.place}.content"):
        if inner.kind == "web_search_result":
            texts.append(f"{inner.text('title')}\n{inner.text('url')}")
        else:
            texts.append(reader([inner]))
    return _message(call_id, "\n".join(texts))


def _message(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _readable(value: Any) -> Any:
    """Returns a JSON value without the members that only Anthropic can read."""
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _readable(each) for key, each in value.items() if not key.startswith(_SEALED)}


class Block(NamedTuple):
    """A content block.

    Attributes:
        place: the path of the block in the request.
        is_new: whether the block is new in this request; media that the model cannot read are then
            refused.
    """

    members: Mapping[str, Any]
    place: str
    is_new: bool = False

    @property
    def kind(self) -> str:
        """The type of the block, such as "text"."""
        return str(self.members["type"])

    def wrong(self, key: str, words: str) -> InvalidField:
        """Returns the error for a member; `words` says what is allowed."""
        return wrong(f"{self.place}.{key}", words, self.members.get(key))

    def text(self, key: str) -> str:
        """Returns a member that must be a string. Raises InvalidField if it is not."""
        return typed(self.members.get(key), str, f"{self.place}.{key}")

    def filled_text(self, key: str) -> str:
        """Returns a member that must be a non-empty string. Raises InvalidField if it is not."""
        if not (text := self.text(key)):
            raise self.wrong(key, "a string that is not empty")
        return text

    def object(self, key: str) -> Mapping[str, Any]:
        """Returns a member that must be an object. Raises InvalidField if it is not."""
        return typed(self.members.get(key), dict, f"{self.place}.{key}")


def read_blocks(content: object, place: str, *, is_new: bool = False) -> list[Block]:
    """Returns the blocks of a message's content; a string becomes one text block. Raises
    InvalidField if the content is neither a string nor a list of objects with a type. `is_new` is
    whether the content is new in this request."""
    if isinstance(content, str):
        return [Block({"type": "text", "text": content}, place)]
    if not isinstance(content, list):
        raise wrong(place, "a string or a list of blocks", content)
    blocks = []
    for position, members in enumerate(content):
        block = Block(members, f"{place}[{position}]", is_new)
        members = typed(members, dict, block.place)
        block.text("type")
        blocks.append(block)
    return blocks


class BlockReader:
    """Converts content blocks to text.

    Args:
        images: receives the images; the text has a tag for each. None = the model does not support
            images.

    Attributes:
        unseen: the media that the model cannot read.
    """

    def __init__(self, images: RequestImages | None = None) -> None:
        self._images = images
        self.unseen = UnreadableParts()

    def __call__(self, blocks: Sequence[Block]) -> str:
        """Returns the text of blocks. Raises InvalidField if a block is malformed or of an
        unsupported type, or there are too many images."""
        return join_parts([part for block in blocks for part in self._parts(block)])

    def _parts(self, block: Block) -> list[ContentPart]:
        if block.kind == "image" and self._images is not None:
            return [self._image(block, self._images)]
        if block.kind in ("image", "container_upload"):
            return [self._unseen(block)]
        read = _READERS.get(block.kind)
        if read is None:
            raise unknown_block(block, _READERS, takes_images=self._images is not None)
        return read(self, block)

    def _unseen(self, block: Block) -> ContentPart:
        """Returns a note instead of a block that the model cannot read. Raises InvalidField if the
        block is new."""
        if block.is_new:
            raise unknown_block(block, _READERS, takes_images=self._images is not None)
        return ContentPart(self.unseen.note(block.kind, block.place, block.members.get("title")))

    def _image(self, block: Block, images: RequestImages) -> ContentPart:
        source = Block(block.object("source"), f"{block.place}.source")
        kind = source.text("type")
        if kind == "base64":
            media_type, key = source.filled_text("media_type"), "data"
            url = f"data:{media_type};base64,{source.filled_text(key)}"
        elif kind == "url":
            key = "url"
            url = source.filled_text(key)
        else:
            raise source.wrong("type", '"base64" or "url"')
        tag = images.add(ImageSource(url, f"{source.place}.{key}", "auto"))
        return ContentPart(tag, is_image=True)

    def _document(self, block: Block) -> list[ContentPart]:
        """Returns the title, context and text of a document. PDFs are not supported here."""
        source = Block(block.object("source"), f"{block.place}.source")
        heads = [
            ContentPart(block.text(key))
            for key in ("title", "context")
            if block.members.get(key) is not None
        ]
        kind = source.text("type")
        if kind == "text":
            return [*heads, ContentPart(source.text("data"))]
        if kind == "content":
            given = source.members.get("content")
            inner = read_blocks(given, f"{source.place}.content", is_new=block.is_new)
            return heads + [part for each in inner for part in self._parts(each)]
        if kind in _FILES and not block.is_new:
            return [self._unseen(block)]
        raise source.wrong("type", '"text" or "content", which hold text')

    def _tool_reference(self, block: Block) -> list[ContentPart]:
        return [ContentPart(block.filled_text("tool_name"))]

    def _browser_state(self, block: Block) -> list[ContentPart]:
        state = {key: block.members.get(key) for key in ("tabs", "state_changes")}
        return [ContentPart(json.dumps(state, ensure_ascii=False))]

    def _search_result(self, block: Block) -> list[ContentPart]:
        inner = read_blocks(block.members.get("content"), f"{block.place}.content")
        heads = [ContentPart(block.text("title")), ContentPart(block.text("source"))]
        return heads + [part for each in inner for part in self._parts(each)]


_READERS: Final[Mapping[str, Callable[[BlockReader, Block], list[ContentPart]]]] = {
    "text": lambda reader, block: [ContentPart(block.text("text"))],
    "document": BlockReader._document,
    "search_result": BlockReader._search_result,
    "tool_reference": BlockReader._tool_reference,
    "browser_state": BlockReader._browser_state,
}
"""The reader of each block type, except images and files."""

_FILES: Final = ("base64", "url", "file")
"""The source types of documents that are files."""


def unknown_block(
    block: Block, taken: Mapping[str, object], *, takes_images: bool = False
) -> InvalidField:
    """Returns the error for a block whose type is not supported in its place."""
    kinds = ", ".join([*taken, *(["image"] if takes_images else [])])
    return InvalidField.about(
        block.place, f"is of type {show(block.kind)}, but this model takes only {kinds} there"
    )


_ROLES: Final = ("user", "assistant", "system")
_CALLING: Final = ("text", "thinking", "redacted_thinking", "tool_use")
"""The block types of the assistant's text, reasoning and tool calls."""

_BILLING: Final = "x-anthropic-billing-header:"
"""The prefix of a block that Claude Code sends before the system prompt. It differs in each
request, so nothing after it could be found in the prefix cache."""

_ERROR: Final = "Error: "


def to_messages(
    system: str | Sequence[Mapping[str, Any]] | None,
    given: Sequence[Mapping[str, Any]] | None,
    images: RequestImages | None = None,
) -> ChatMessages:
    """Returns the messages of a chat. Consecutive messages of one role are merged. Media that the
    model cannot read are replaced by a note, except in the user's last message, where they are
    refused. Raises InvalidField if the messages are missing or empty, a block is malformed or of an
    unsupported type, or there are too many images.

    Args:
        images: receives the images of the messages; None = the model does not support images.
    """
    if given is None:
        raise InvalidField.about("messages", "is required")
    if not given:
        raise InvalidField.about("messages", "must not be empty")
    reader = BlockReader(images)
    messages: list[Message] = []
    if system is not None:
        blocks = read_blocks(system, "system")
        shown = [each for each in blocks if not str(each.members.get("text")).startswith(_BILLING)]
        found = _system(shown, reader)
        messages += [PlacedMessage(message, "system") for message in found]
    for role, turn in groupby(_blocks(given), key=lambda found: found[0]):
        blocks = [block for _, own in turn for block in own]
        match role:
            case "user":
                found = _user(blocks, reader)
            case "assistant":
                found = _assistant(blocks, reader)
            case _:
                found = _system(blocks, reader)
        place = blocks[0].place.rpartition(".content")[0] if blocks else "messages"
        messages += [PlacedMessage(message, place) for message in found]
    if not messages:
        raise InvalidField.about("messages", "must have at least one message with content")
    check_results(messages, "tool_use_id")
    sources = () if images is None else images.sources
    return ChatMessages(messages, sources, reader.unseen.warnings)


def _blocks(given: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Block]]]:
    """Yields the role and the blocks of each message."""
    for position, message in enumerate(given):
        place = f"messages[{position}]"
        role = one_of(message.get("role"), _ROLES, f"{place}.role")
        blocks = read_blocks(message.get("content"), f"{place}.content")
        is_last = position == len(given) - 1 and role == "user"
        yield role, _with_new(blocks) if is_last else blocks


def given_documents(given: Sequence[Mapping[str, Any]] | None) -> Iterator[RequestDocument]:
    """Yields the documents of messages. When the caller sets a document's text, it replaces the
    file in the message."""
    for _, blocks in _blocks(given or ()):
        for block in blocks:
            if block.kind == "tool_result" and isinstance(block.members.get("content"), list):
                inner = read_blocks(block.members["content"], f"{block.place}.content")
                yield from filter(None, map(_given_document, inner))
            elif (document := _given_document(block)) is not None:
                yield document


def _given_document(block: Block) -> RequestDocument | None:
    source = block.members.get("source")
    if block.kind != "document" or not isinstance(source, dict):
        return None
    if source.get("type") not in ("base64", "file"):
        return None

    def take(text: str) -> None:
        source.clear()
        source.update(type="text", data=text)

    return RequestDocument(f"{block.place}.source", source, block.is_new, take, "data")


def _with_new(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks of the user's last message, and marks those that are new in this request.

    In a message with tool results, the other blocks belong to the results. After a refusal, Claude
    Code appends the user's text to the refused message, so only the last text and later blocks are
    new.
    """
    kinds = [block.kind for block in blocks]
    texts = [position for position, kind in enumerate(kinds) if kind == "text"]
    if "tool_result" in kinds:
        return [*blocks]
    first_new = texts[-1] if len(texts) > 1 else 0
    return [block._replace(is_new=place >= first_new) for place, block in enumerate(blocks)]


def _system(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    for block in blocks:
        if block.kind != "text":
            raise unknown_block(block, {"text": None})
    text = reader(blocks)
    return [{"role": "system", "content": text}] if text else []


def _user(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    """Returns the tool results and the user's other blocks as messages; results must directly
    follow their calls."""
    messages = [_result(block, reader) for block in blocks if block.kind == "tool_result"]
    others = [block for block in blocks if block.kind != "tool_result"]
    if others or not messages:
        messages.append({"role": "user", "content": reader(others)})
    return messages


def _result(block: Block, reader: BlockReader) -> Message:
    content, is_error = block.members.get("content"), block.members.get("is_error")
    optional(is_error, bool, f"{block.place}.is_error")
    call_id = block.filled_text("tool_use_id")
    text = "" if content is None else reader(read_blocks(content, f"{block.place}.content"))
    if is_error:
        # Templates cannot mark failed results, so the text has to.
        text = _ERROR + text
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(blocks: Sequence[Block], reader: BlockReader) -> list[Message]:
    """Returns the assistant's text, reasoning and tool calls as messages. The result of a tool on
    Anthropic's servers becomes a separate message."""
    messages: list[Message] = []
    turn = _Turn()
    for block in blocks:
        match block.kind:
            case "text":
                turn.texts.append(block)
            case "compaction":
                turn.texts += _summary(block)
            case "thinking":
                turn.reasoning.append(_thinking(block))
            case "redacted_thinking" | "fallback":
                pass  # ignore encrypted reasoning and fallback markers
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                turn.calls.append(_call(block))
            case kind if kind.endswith(_RESULT):
                messages += [turn.message(reader), server_result(block, reader)]
                turn = _Turn()
            case _:
                raise unknown_block(block, dict.fromkeys(_CALLING))
    if turn != _Turn() or not messages:
        messages.append(turn.message(reader))
    return messages


@dataclass(slots=True)
class _Turn:
    """The assistant's text, reasoning and tool calls up to a tool result."""

    texts: list[Block] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self, reader: BlockReader) -> Message:
        message: Message = {"role": "assistant", "content": reader(self.texts)}
        if reasoning := "\n".join(filter(None, self.reasoning)):
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
            message["content"] = message["content"] or None  # templates may treat "" differently
        return message


def _summary(block: Block) -> list[Block]:
    """Returns a compaction summary as a text block; an empty list if compaction failed."""
    if block.members.get("content") is None:
        return []
    return [Block({"type": "text", "text": summary_text(block.text("content"))}, block.place)]


def _thinking(block: Block) -> str:
    """Returns the reasoning of a block, if necessary decoded from its signature."""
    signature = optional(block.members.get("signature"), str, f"{block.place}.signature")
    return block.text("thinking") or unseal(signature or "")


def _call(block: Block) -> dict[str, Any]:
    # Clients repeat what a model wrote, which may be any JSON value.
    toolset = None if block.members.get("toolset_name") is None else block.text("toolset_name")
    name = flat_name(block.filled_text("name"), toolset)
    function = {"name": name, "arguments": block.members.get("input")}
    return {"type": "function", "id": block.filled_text("id"), "function": function}


_MIN_BUDGET: Final = 1024
"""The minimum `budget_tokens`, as in Anthropic's API."""

_THINKING: Final[Mapping[str, bool]] = {
    "enabled": True,
    "adaptive": True,
    "between_tools": True,
    "disabled": False,
}
"""Whether the model is to reason, by the type of `thinking`."""

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard", "fast"),
}
"""Fields that have no effect here, with their allowed values."""

_DISPLAYS: Final = ("summarized", "omitted")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_MISSING: Final[Mapping[str, str | None]] = {
    "mcp_servers": None,
    "container": None,
    "thread": "thread_unsupported_request",
    "compaction": None,
}
"""Fields for unsupported features, with error codes that clients understand: they then continue
without a thread (`tool_runner` of anthropic 2.12)."""

_KEEPS_THINKING: Final = "clear_thinking_20251015"


@dataclass(frozen=True, slots=True)
class MessageFields:
    """The options of a request that are not part of its chat.

    Attributes:
        thinks: whether reasoning is enabled; None = not given.
        omits_thinking: whether the client gets reasoning only as its signature.
        budget: the maximum tokens of reasoning; None = not given.
        effort: the reasoning effort; None = the default.
        format_name: the field of the output format, for error messages.
        format: the output format; None = free text.
        warnings: the ignored parts of the request.
    """

    thinks: bool | None = None
    omits_thinking: bool = False
    budget: int | None = None
    effort: str | None = None
    format_name: str = "output_config.format"
    format: Mapping[str, Any] | None = None
    warnings: Sequence[str] = ()


def read_fields(body: MessagesRequest) -> MessageFields:
    """Returns the options of a request. Raises InvalidField if a field is malformed or not
    supported."""
    for name, code in _MISSING.items():
        if getattr(body, name):
            raise InvalidField(f"{name} is not supported by this server", param=name, code=code)
    for name in ("n", "best_of"):
        value = getattr(body, name)
        if value not in (None, 1):
            raise wrong(name, "1", value)
    for name, allowed in _CHOICES.items():
        value = getattr(body, name)
        if value is not None:
            one_of(value, allowed, name)
    if body.stop is not None and body.stop_sequences is not None:
        raise InvalidField.about("stop", "cannot be used with stop_sequences")
    optional((body.metadata or {}).get("user_id"), str, "metadata.user_id")
    thinks, omits_thinking, budget = _thinking_options(body.thinking)
    effort, format_name, format = _output(body)
    edits = _edits(body.context_management or {})
    return MessageFields(thinks, omits_thinking, budget, effort, format_name, format, edits)


def check_filling(body: MessagesRequest) -> None:
    """Raises InvalidField if a request that only fills the prefix cache (`max_tokens: 0`) sets
    options of the answer, as in Anthropic's API."""
    asked = {
        "stream": bool(body.stream),
        "thinking": (body.thinking or {}).get("type") == "enabled",
        "output_config.format": bool((body.output_config or {}).get("format")),
        "output_format": bool(body.output_format),
        "tool_choice": (body.tool_choice or {}).get("type") in ("any", "tool"),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InvalidField.about(
                name, "cannot be used with max_tokens 0, which only fills the cache"
            )


def _thinking_options(given: Mapping[str, Any] | None) -> tuple[bool | None, bool, int | None]:
    """Returns the settings in `thinking`: whether reasoning is enabled (None = not given), whether
    it is hidden, and its maximum tokens (None = not given)."""
    if given is None:
        return None, False, None
    kind = one_of(given.get("type"), _THINKING, "thinking.type")
    budget = given.get("budget_tokens")
    is_budget = type(budget) is int and budget >= _MIN_BUDGET
    if not is_budget and (kind == "enabled" or budget is not None):
        raise wrong("thinking.budget_tokens", f"an integer of at least {_MIN_BUDGET}", budget)
    display = given.get("display")
    if display is not None:
        one_of(display, _DISPLAYS, "thinking.display")
    return _THINKING[kind], display == "omitted", budget


def _output(body: MessagesRequest) -> tuple[str | None, str, Mapping[str, Any] | None]:
    """Returns the output options: the effort, the field of the format, and the format."""
    config = body.output_config or {}
    effort = config.get("effort")
    if effort is not None:
        one_of(effort, _EFFORTS, "output_config.effort")
    name, format = "output_config.format", config.get("format")
    if body.output_format is not None:
        if format is not None:
            message = f"output_format cannot be used with {name}, which has taken its place"
            raise InvalidField(message, param="output_format")
        name, format = "output_format", body.output_format
    if format is not None:
        format = typed(format, dict, name)
        one_of(format.get("type"), ("json_schema",), f"{name}.type")
        typed(format.get("schema"), dict, f"{name}.schema")
    return effort, name, format


def _edits(context_management: Mapping[str, Any]) -> Sequence[str]:
    """Returns the edits of the context that are ignored."""
    name = "context_management.edits"
    edits = context_management.get("edits")
    if edits is None:
        return []
    edits = typed(edits, list, name)
    ignored_parts_warning = []
    for position, edit in enumerate(edits):
        place = f"{name}[{position}]"
        edit = typed(edit, dict, place)
        kind = typed(edit.get("type"), str, f"{place}.type")
        if kind != _KEEPS_THINKING or edit.get("keep") != "all":
            ignored_parts_warning.append(f"{place} of type {kind[:100]}")
    return ignored_parts_warning
