"""Schemas of the answers whose bodies are not made of structs: those of the Responses API, and
Ollama's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Union

from msgspec import UNSET, Struct, UnsetType, defstruct

from fastovms.api.answer import RequestMetrics
from fastovms.api.dialect import AnswerSchema
from fastovms.api.endpoint import ListPage
from fastovms.api.logprobs import TokenLogprob
from fastovms.params import SamplingFields
from fastovms.parts.responses.output import ResponseUsage
from fastovms.request_fields import rows_of

# Declares the answers of the Responses API: the object, its items and the events of its stream.


ItemStatus = Literal["in_progress", "completed", "incomplete"]


# Parts of items


class InputText(AnswerSchema, tag_field="type", tag="input_text", kw_only=True):
    """A text in the model's input."""

    text: str


class InputImage(AnswerSchema, tag_field="type", tag="input_image", kw_only=True):
    """An image in the model's input."""

    detail: str | None
    image_url: str


class OutputText(AnswerSchema, tag_field="type", tag="output_text", kw_only=True):
    """A text of the model."""

    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class RefusalPart(AnswerSchema, tag_field="type", tag="refusal", kw_only=True):
    """A refusal, as models of other servers return it."""

    refusal: str


class ReasoningText(AnswerSchema, tag_field="type", tag="reasoning_text", kw_only=True):
    """The reasoning of the model."""

    text: str


class SummaryText(AnswerSchema, tag_field="type", tag="summary_text", kw_only=True):
    """The reasoning of the model. OVMS has a summary here."""

    text: str


class InputFile(AnswerSchema, tag_field="type", tag="input_file", kw_only=True):
    """A file from the client."""

    detail: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


ContentPart = InputText | InputImage | InputFile | OutputText | RefusalPart


# Items


class MessageItem(AnswerSchema, tag_field="type", tag="message", kw_only=True):
    """A message of a user, of the model or of the system."""

    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[ContentPart]
    phase: Literal["commentary", "final_answer"] | UnsetType = UNSET


class FunctionCallItem(AnswerSchema, tag_field="type", tag="function_call", kw_only=True):
    """A call of one of the client's functions. The arguments are JSON."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class FunctionCallOutputItem(
    AnswerSchema, tag_field="type", tag="function_call_output", kw_only=True
):
    """The output of a function."""

    id: str
    status: ItemStatus
    call_id: str | None
    output: str | list[ContentPart]


class CustomToolCallItem(AnswerSchema, tag_field="type", tag="custom_tool_call", kw_only=True):
    """A call of one of the client's tools of free text."""

    id: str
    status: ItemStatus | UnsetType = UNSET
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


class CustomToolCallOutputItem(
    AnswerSchema, tag_field="type", tag="custom_tool_call_output", kw_only=True
):
    """The output of a tool of free text."""

    id: str
    status: ItemStatus | UnsetType = UNSET
    call_id: str | None
    output: str | list[ContentPart]


class ReasoningItem(AnswerSchema, tag_field="type", tag="reasoning", kw_only=True):
    """The reasoning of the model."""

    id: str
    status: ItemStatus | UnsetType = UNSET
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class CompactionItem(AnswerSchema, tag_field="type", tag="compaction", kw_only=True):
    """A summary of the earlier conversation."""

    id: str
    encrypted_content: str


_OWN_MEMBERS: Final[dict[str, dict[str, Any]]] = {
    "shell_call": {"action": dict[str, Any], "environment": dict[str, Any] | None | UnsetType},
    "shell_call_output": {"output": list[dict[str, Any]]},
    "local_shell_call": {"action": dict[str, Any]},
    "local_shell_call_output": {"output": str},
    "apply_patch_call": {"operation": dict[str, str]},
    "apply_patch_call_output": {"output": str | None | UnsetType},
    "computer_call": {
        "action": dict[str, Any] | None | UnsetType,
        "actions": list[dict[str, Any]] | None | UnsetType,
        "pending_safety_checks": list[dict[str, Any]] | UnsetType,
    },
    "computer_call_output": {"output": dict[str, Any]},
    "tool_search_call": {"arguments": Any, "execution": str | UnsetType},
    "tool_search_output": {"tools": list[dict[str, Any]]},
}
"""The members of items of tools that clients run, beside their ids and their status."""


def _own_item(kind: str, members: dict[str, Any]) -> type[Struct]:
    own = [(name, shape, UNSET) for name, shape in members.items()]
    status = ItemStatus | Literal["failed"]
    what = "The result of a call" if "output" in kind else "A call"
    return defstruct(
        "".join(word.capitalize() for word in kind.split("_")) + "Item",
        [("id", str), ("status", status), ("call_id", str), *own],
        bases=(AnswerSchema,),
        tag_field="type",
        tag=kind,
        kw_only=True,
        namespace={"__doc__": f"{what} of a tool that the client runs."},
    )


if TYPE_CHECKING:
    ConversationItem = MessageItem | FunctionCallItem | FunctionCallOutputItem
else:
    ConversationItem = Union[
        (
            MessageItem,
            FunctionCallItem,
            FunctionCallOutputItem,
            CustomToolCallItem,
            CustomToolCallOutputItem,
            ReasoningItem,
            CompactionItem,
            *(_own_item(kind, members) for kind, members in _OWN_MEMBERS.items()),
        )
    ]


class ItemList(ListPage[ConversationItem]):
    """A page of items."""


# Responses


class ResponseFailure(AnswerSchema, kw_only=True):
    """The error of a failed response."""

    code: str
    message: str


class IncompleteDetails(AnswerSchema, kw_only=True):
    """The reason why a response is incomplete."""

    reason: str


class ConversationReference(AnswerSchema, kw_only=True):
    """The conversation that a response belongs to."""

    id: str


if TYPE_CHECKING:

    class EchoedParams(AnswerSchema, kw_only=True):
        """The sampling parameters that a response repeats."""

else:
    EchoedParams = defstruct(
        "EchoedParams",
        [
            (name, float) if row.field.echo == "*" else (name, float | UnsetType, UNSET)
            for name, row in rows_of(SamplingFields).items()
            if row.field.echo
        ],
        bases=(AnswerSchema,),
        kw_only=True,
    )


class ResponseObject(EchoedParams, kw_only=True):
    """A response: its status and output, and the parameters of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    metrics: RequestMetrics | UnsetType = UNSET
    output: list[ConversationItem]
    background: bool
    conversation: ConversationReference | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_options: dict[str, str] | UnsetType = UNSET
    prompt_cache_retention: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    user: str | None


class CompactedResponse(AnswerSchema, kw_only=True):
    """A compacted conversation, as input for later requests."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ConversationItem]
    usage: ResponseUsage


# Events

_Part = OutputText | ReasoningText | SummaryText
_OF_RESPONSE: Final = {"response": ResponseObject}
_OF_ITEM: Final = {"output_index": int, "item": ConversationItem}
_IN_ITEM: Final = {"item_id": str, "output_index": int}
_OF_COMMAND: Final = {"output_index": int, "command_index": int}
_IN_CONTENT: Final = {**_IN_ITEM, "content_index": int}
_IN_SUMMARY: Final = {**_IN_ITEM, "summary_index": int}
_OF_PART: Final = {**_IN_CONTENT, "part": _Part}
_OF_SUMMARY_PART: Final = {**_IN_SUMMARY, "part": _Part}
_LOGPROBS: Final = {"logprobs": list[TokenLogprob]}

_EVENTS: Final[dict[str, dict[str, Any]]] = {
    **dict.fromkeys(("created", "queued", "in_progress"), _OF_RESPONSE),
    **dict.fromkeys(("completed", "incomplete", "failed"), _OF_RESPONSE),
    **dict.fromkeys(("output_item.added", "output_item.done"), _OF_ITEM),
    **dict.fromkeys(("content_part.added", "content_part.done"), _OF_PART),
    **dict.fromkeys(
        ("reasoning_summary_part.added", "reasoning_summary_part.done"), _OF_SUMMARY_PART
    ),
    "output_text.delta": {**_IN_CONTENT, "delta": str, **_LOGPROBS},
    "output_text.done": {**_IN_CONTENT, "text": str, **_LOGPROBS},
    "reasoning_text.delta": {**_IN_CONTENT, "delta": str},
    "reasoning_text.done": {**_IN_CONTENT, "text": str},
    "reasoning_summary_text.delta": {**_IN_SUMMARY, "delta": str},
    "reasoning_summary_text.done": {**_IN_SUMMARY, "text": str},
    "function_call_arguments.delta": {**_IN_ITEM, "delta": str},
    "function_call_arguments.done": {**_IN_ITEM, "arguments": str},
    "custom_tool_call_input.delta": {**_IN_ITEM, "delta": str},
    "custom_tool_call_input.done": {**_IN_ITEM, "input": str},
    "shell_call_command.added": {**_OF_COMMAND, "command": str},
    "shell_call_command.delta": {**_OF_COMMAND, "delta": str},
    "shell_call_command.done": {**_OF_COMMAND, "command": str},
    "apply_patch_call_operation_diff.delta": {**_IN_ITEM, "delta": str},
    "apply_patch_call_operation_diff.done": {**_IN_ITEM, "diff": str},
}
"""The members of each event in addition to its type and number, by its type without `response.`."""


class ErrorEvent(AnswerSchema, tag_field="type", tag="error", kw_only=True):
    """The error, sent before the response fails."""

    sequence_number: int
    code: str | None
    message: str
    param: str | None


def _event(kind: str, members: dict[str, Any]) -> type[Struct]:
    name = "".join(word.capitalize() for word in kind.replace(".", "_").split("_"))
    return defstruct(
        f"{name}Event",
        [("sequence_number", int), *members.items()],
        bases=(AnswerSchema,),
        tag_field="type",
        tag=f"response.{kind}",
        kw_only=True,
        namespace={"__doc__": f"The event `response.{kind}`."},
    )


RESPONSE_EVENT: Final[Any] = Union[
    (ErrorEvent, *(_event(kind, members) for kind, members in _EVENTS.items()))
]
"""Any event of a response's stream."""


class OllamaFunction(AnswerSchema, kw_only=True):
    """The called function, with its arguments as an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools. It is always sent whole."""

    id: str
    function: OllamaFunction


class OllamaMessage(AnswerSchema, kw_only=True):
    """The text, reasoning and calls of the model."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(AnswerSchema, kw_only=True):
    """The members of answers and lines of both endpoints. The members after `done` are in the last
    line and in whole answers; times are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaChatAnswer(OllamaPart, kw_only=True):
    """The answer of `POST /api/chat`, and each line of its stream."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaPart, kw_only=True):
    """The answer of `POST /api/generate`, and each line of its stream. `context` has the tokens of
    the prompt and of the answer."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
