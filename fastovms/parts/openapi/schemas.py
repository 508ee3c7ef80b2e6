"""Schemas of responses whose bodies are not written from structs: those of the Responses API and of
Ollama's text generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args

from msgspec import UNSET, Struct, UnsetType, defstruct

from fastovms.api.answer import RequestMetrics
from fastovms.api.dialect import AnswerSchema
from fastovms.api.endpoint import ListPage
from fastovms.api.logprobs import TokenLogprob
from fastovms.params import SamplingFields
from fastovms.parts.responses.output import ResponseUsage
from fastovms.request_fields import rows_of

ItemStatus = Literal["in_progress", "completed", "incomplete"]


def _tagged(kind: str, what: str, members: dict[str, Any], *, suffix: str = "") -> type[Struct]:
    """Returns the type of an object whose `type` is `kind`. Members that may be absent have the
    default UNSET. `what` describes the object."""
    words = kind.removeprefix("response.").replace(".", "_").split("_")
    return defstruct(
        "".join(map(str.capitalize, words)) + suffix,
        [
            (name, shape, UNSET) if UnsetType in get_args(shape) else (name, shape)
            for name, shape in members.items()
        ],
        bases=(AnswerSchema,),
        tag_field="type",
        tag=kind,
        kw_only=True,
        namespace={"__doc__": what},
    )


_TEXT: Final = {"text": str}
_MAYBE: Final = str | UnsetType
_FILE: Final = ("detail", "file_data", "file_id", "file_url", "filename")

InputText: Final[Any] = _tagged("input_text", "A text in the model's input.", _TEXT)
InputImage: Final[Any] = _tagged(
    "input_image", "An image in the model's input.", {"detail": str | None, "image_url": str}
)
OutputText: Final[Any] = _tagged(
    "output_text",
    "A text of the model.",
    {**_TEXT, "annotations": list[Any], "logprobs": list[TokenLogprob]},
)
Refusal: Final[Any] = _tagged(
    "refusal", "A refusal, as models of other servers return it.", {"refusal": str}, suffix="Part"
)
ReasoningText: Final[Any] = _tagged("reasoning_text", "The reasoning of the model.", _TEXT)
SummaryText: Final[Any] = _tagged(
    "summary_text", "The reasoning of the model. OVMS has a summary here.", _TEXT
)
InputFile: Final[Any] = _tagged(
    "input_file", "A file from the client.", dict.fromkeys(_FILE, _MAYBE)
)
ContentPart: Final[Any] = InputText | InputImage | InputFile | OutputText | Refusal

_CALL: Final = {"call_id": str, "name": str, "namespace": _MAYBE}
_OUTPUT: Final = {"call_id": str | None, "output": str | list[ContentPart]}
_STATUS: Final = {"status": ItemStatus}
_MAYBE_STATUS: Final = {"status": ItemStatus | UnsetType}
_OF_CLIENTS: Final = {"status": ItemStatus | Literal["failed"], "call_id": str}
_ITEMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "message": (
        "A message of a user, of the model or of the system.",
        {
            **_STATUS,
            "role": Literal["user", "assistant", "system", "developer"],
            "content": list[ContentPart],
            "phase": Literal["commentary", "final_answer"] | UnsetType,
        },
    ),
    "function_call": (
        "A call of one of the client's functions. The arguments are JSON.",
        {**_STATUS, **_CALL, "arguments": str},
    ),
    "function_call_output": ("The output of a function.", {**_STATUS, **_OUTPUT}),
    "custom_tool_call": (
        "A call of one of the client's tools of free text.",
        {**_MAYBE_STATUS, **_CALL, "input": str},
    ),
    "custom_tool_call_output": ("The output of a tool of free text.", {**_MAYBE_STATUS, **_OUTPUT}),
    "reasoning": (
        "The reasoning of the model.",
        {
            **_MAYBE_STATUS,
            "summary": list[SummaryText],
            "content": list[ReasoningText] | UnsetType,
            "encrypted_content": _MAYBE,
        },
    ),
    "compaction": ("A summary of the earlier conversation.", {"encrypted_content": str}),
}
"""The description and the members of each type of item, besides its id."""

_OBJECT: Final = dict[str, Any] | UnsetType
_OBJECTS: Final = list[dict[str, Any]] | UnsetType
_OF_CLIENT_TOOLS: Final[dict[str, dict[str, Any]]] = {
    "shell_call": {"action": _OBJECT, "environment": _OBJECT | None},
    "shell_call_output": {"output": _OBJECTS},
    "local_shell_call": {"action": _OBJECT},
    "local_shell_call_output": {"output": _MAYBE},
    "apply_patch_call": {"operation": dict[str, str] | UnsetType},
    "apply_patch_call_output": {"output": _MAYBE | None},
    "computer_call": {
        "action": _OBJECT | None,
        "actions": _OBJECTS | None,
        "pending_safety_checks": _OBJECTS,
    },
    "computer_call_output": {"output": _OBJECT},
    "tool_search_call": {"arguments": Any | UnsetType, "execution": _MAYBE},
    "tool_search_output": {"tools": _OBJECTS},
}
"""The members of calls of tools that clients run, besides ids and status."""


ConversationItem: Final[Any] = Union[
    (
        *(
            _tagged(kind, what, {"id": str, **members}, suffix="Item")
            for kind, (what, members) in _ITEMS.items()
        ),
        *(
            _tagged(
                kind,
                f"{'The result of a' if 'output' in kind else 'A'} call of a tool that the client "
                "runs.",
                {"id": str, **_OF_CLIENTS, **members},
                suffix="Item",
            )
            for kind, members in _OF_CLIENT_TOOLS.items()
        ),
    )
]


class ItemList(ListPage[ConversationItem]):
    """A page of a list of items."""


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
        """The sampling parameters that a response repeats from its request."""

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


_NUMBER: Final = {"sequence_number": int}
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
"""The members of each event besides its type and number, by type without the prefix `response.`."""


RESPONSE_EVENT: Final[Any] = Union[
    (
        _tagged(
            "error",
            "The error, sent before the response fails.",
            {**_NUMBER, "code": str | None, "message": str, "param": str | None},
            suffix="Event",
        ),
        *(
            _tagged(
                f"response.{kind}",
                f"The event `response.{kind}`.",
                {**_NUMBER, **members},
                suffix="Event",
            )
            for kind, members in _EVENTS.items()
        ),
    )
]
"""Any event of a response's stream."""


class OllamaFunction(AnswerSchema, kw_only=True):
    """The called function, with its arguments as an object."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(AnswerSchema, kw_only=True):
    """A call of one of the client's tools, which is always sent whole."""

    id: str
    function: OllamaFunction


class OllamaMessage(AnswerSchema, kw_only=True):
    """The model's text, reasoning and tool calls."""

    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaPart(AnswerSchema, kw_only=True):
    """The members that the responses and stream lines of both endpoints share. The members after
    `done` are in the last line and in whole responses; times are in nanoseconds."""

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
    """The response of `POST /api/chat`, and each line of its stream."""

    message: OllamaMessage


class OllamaGenerateAnswer(OllamaPart, kw_only=True):
    """The response of `POST /api/generate`, and each line of its stream. `context` has the token
    ids of the prompt and the answer."""

    response: str
    thinking: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
