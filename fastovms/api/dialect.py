"""The dialects of OpenAI's API: `/v1` (OpenAI, vLLM) and `/v3` (OVMS), their errors and SSE
frames."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fastovms.errors import (
    CONTEXT_EXCEEDED,
    BackendError,
    BackendUnavailable,
    InvalidField,
    MalformedBody,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    RequestError,
    shortage_of,
)
from fastovms.http.messages import Request, Response
from fastovms.json_types import on_one_line
from fastovms.text.detokenizer import Measure, utf8_length

logger = logging.getLogger(__name__)


START: Final = b"data: "
_NAME: Final = b"event: "
END: Final = b"\n\n"
"""The delimiters around an event's JSON. The JSON has no line breaks, so `END` occurs only at its
end."""


def frame(data: bytes, name: str = "") -> bytes:
    """Returns the SSE frame of one event, with an `event:` line if `name` is given."""
    event = START + data + END
    return _NAME + name.encode() + b"\n" + event if name else event


def split_frame(event: bytes) -> tuple[bytes, bytes]:
    """Returns the event name and the JSON of a frame with an `event:` line."""
    name, _, data = event.removeprefix(_NAME).partition(b"\n")
    return name, data[len(START) : -len(END)]


def without_name(event: bytes) -> bytes:
    """Returns a frame without its `event:` line, if it has one."""
    return event[event.index(START) :]


DONE: Final = frame(b"[DONE]")


T = TypeVar("T")


class ErrorReport(NamedTuple):
    """The details of an error that a client receives.

    Attributes:
        param: the invalid field; None = not a single field.
        code: the reason, for programs; None = no code.
        request_id: the id of the failed request.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """The error format of one family of clients.

    Attributes:
        kind: the type of an error's body.
        answer: creates the body.
        last_frames: returns the frames that end a stream, given the error's JSON.
    """

    kind: type[AnswerSchema]
    answer: Callable[[ErrorReport], AnswerSchema]
    last_frames: Callable[[bytes], bytes]

    def body(self, error: ErrorReport) -> bytes:
        """Returns the JSON of an error."""
        return msgspec.json.encode(self.answer(error))


class AnswerSchema(Struct, forbid_unknown_fields=True):
    """The base class of all answers. Answers have only the declared fields. Optional fields are
    `UNSET` by default; fields with another default are always present."""


def or_unset(value: T | None) -> T | UnsetType:
    """Returns the value, or `UNSET` for None, so that the field is left out."""
    return UNSET if value is None else value


class ErrorDetails(AnswerSchema):
    """An error in OpenAI's format. `param` names the invalid field."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(AnswerSchema):
    """An error as OpenAI's clients read it."""

    error: ErrorDetails


class OvmsError(AnswerSchema):
    """An error in OpenVINO Model Server's format: only a message."""

    error: str


class OllamaError(AnswerSchema):
    """An error as Ollama's clients read it."""

    error: str


class AnthropicErrorCode(AnswerSchema):
    """The reason for an error, for programs."""

    error_code: str


class AnthropicErrorDetails(AnswerSchema):
    """An error in Anthropic's format."""

    type: str
    message: str
    details: AnthropicErrorCode | UnsetType = UNSET


class AnthropicError(AnswerSchema, kw_only=True):
    """An error as Anthropic's clients read it."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetails
    request_id: str | None


class CohereError(AnswerSchema, kw_only=True):
    """An error as Cohere's clients read it: a message and the id of the request."""

    id: str | UnsetType = UNSET
    message: str


_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""OpenAI's error types by status; other 4xx are `invalid_request_error`, 5xx `server_error`."""

_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    **_OPENAI_TYPES,
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status; other 4xx are `invalid_request_error`, 5xx `api_error`."""


def _openai_error(error: ErrorReport) -> OpenAIError:
    usual = "invalid_request_error" if error.status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(error.status, usual)
    return OpenAIError(ErrorDetails(error.message, kind, error.param, error.code))


def _anthropic_error(error: ErrorReport) -> AnthropicError:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, usual)
    message, details = (
        error.message,
        UNSET if error.code is None else AnthropicErrorCode(error.code),
    )
    if error.code == CONTEXT_EXCEEDED:
        # Claude Code compacts the chat if an error begins with these words.
        message = f"prompt is too long: {message}"
    body = AnthropicErrorDetails(kind, message, details)
    return AnthropicError(error=body, request_id=error.request_id or None)


OPENAI_ERRORS: Final = ErrorForm(OpenAIError, _openai_error, lambda body: frame(body) + DONE)

OVMS_ERRORS: Final = ErrorForm(
    OvmsError, lambda error: OvmsError(error.message), lambda body: frame(body) + DONE
)

OLLAMA_ERRORS: Final = ErrorForm(
    OllamaError, lambda error: OllamaError(error.message), lambda body: on_one_line(body) + b"\n"
)
"""Ollama's errors. At the end of a stream, an error is a line of JSON."""

ANTHROPIC_ERRORS: Final = ErrorForm(
    AnthropicError, _anthropic_error, lambda body: frame(body, "error")
)

COHERE_ERRORS: Final = ErrorForm(
    CohereError,
    lambda error: CohereError(id=error.request_id or UNSET, message=error.message),
    frame,
)
"""Cohere's errors. No answer of Cohere's paths is streamed."""


LogFields = tuple[tuple[str, object], ...]
"""Names and values for the access log."""

_MAX_LOGGED: Final = 300
"""The maximum number of characters of an error message in the access log."""


_MAX_SERVED: Final = 8
"""The maximum number of models listed in an error."""


def model_not_found(name: str, dialect: Dialect, served: Sequence[str] = ()) -> ModelNotFound:
    """Returns the error about a model that is not served. `served` are the names to list."""
    message = dialect.unknown_model.format(name[:200])
    if served:
        listed = ", ".join(f"`{one[:100]}`" for one in served[:_MAX_SERVED])
        more = f" and {len(served) - _MAX_SERVED} more" if len(served) > _MAX_SERVED else ""
        message += (
            f" This server has {listed}{more}."
            if message.endswith(".")
            else (f": this server has {listed}{more}")
        )
    return ModelNotFound(message, param="model", code="model_not_found")


def error_response(error: Exception, dialect: Dialect, request_id: str = "") -> Response:
    """Returns the answer to a request that ended with `error`."""
    status = _status(error, dialect)
    headers: tuple[tuple[str, str], ...] = ()
    if status in (429, 503):
        seconds = 1.0
        if isinstance(error, (Overloaded, BackendUnavailable)):
            seconds = error.retry_after
        headers = (("Retry-After", str(max(1, math.ceil(seconds)))),)
    return Response(
        status,
        error_body(error, dialect, request_id),
        headers=headers,
        log_fields=log_fields_of(error),
    )


def log_fields_of(error: Exception) -> LogFields:
    """Returns the access log's fields for an error that ends a stream."""
    return _log_fields(*_words(error))


def error_body(error: Exception, dialect: Dialect, request_id: str = "") -> bytes:
    """Returns the JSON for `error`."""
    report = ErrorReport(_status(error, dialect), *describe(error), request_id)
    return dialect.error_form.body(report)


def last_frames(error: Exception, dialect: Dialect, request_id: str = "") -> bytes:
    """Returns the frames that end a running stream with `error`."""
    return dialect.error_form.last_frames(error_body(error, dialect, request_id))


def describe(error: Exception) -> tuple[str, str | None, str | None]:
    """Returns the message, the invalid field and the reason's code that a client receives.
    Unexpected errors are logged here, and described to the client without internal details."""
    if shortage_of(error) is not None:
        logger.warning("a request failed: %s: %s", type(error).__name__, error)
    elif not isinstance(error, (RequestError, BackendError)):
        logger.error("a request failed with an internal error", exc_info=error)
    return _words(error)


def render_error(request: Request, status: int, message: str) -> Response:
    """Returns the response for an error of the HTTP layer (no such route, body too large, ...)."""
    report = ErrorReport(status, message, request_id=request.id)
    dialect = ANTHROPIC if is_anthropics(request) else dialect_of(request.path)
    body = dialect.error_form.body(report)
    return Response(status, body, log_fields=_log_fields(message, None, None))


def is_anthropics(request: Request) -> bool:
    """Returns whether the client is Anthropic's, which uses some of OpenAI's paths, but sends the
    version of its API in a header."""
    return "anthropic-version" in request.headers


def _status(error: Exception, dialect: Dialect) -> int:
    error = shortage_of(error) or error
    match error:
        case MalformedBody():
            return dialect.malformed_body_status
        case InvalidField() if error.param in dialect.body_level_fields:
            return dialect.malformed_body_status
        case NotFound():
            return 404
        case RequestError():
            return 400
        case Overloaded():
            return 429
        case BackendUnavailable():
            return 503
    return 500


def _words(error: Exception) -> tuple[str, str | None, str | None]:
    error = shortage_of(error) or error
    if isinstance(error, RequestError):
        return error.message, error.param, error.code
    code = "rate_limit_exceeded" if isinstance(error, RateLimited) else None
    return str(error) if isinstance(error, BackendError) else "internal server error", None, code


def _log_fields(message: str, param: str | None, code: str | None) -> LogFields:
    fields = {"param": param, "code": code, "error": message}
    return tuple((name, value[:_MAX_LOGGED]) for name, value in fields.items() if value is not None)


@dataclass(frozen=True, slots=True)
class ResponsesStyle:
    """The differences between the dialects of the Responses API. The defaults are OpenAI's.

    Attributes:
        id_separator: the separator between an id's prefix and the rest.
        names_events: whether frames have an `event:` line.
        has_error_events: whether an `error` event precedes `response.failed`.
        length_reason: the incomplete reason of an answer that reached its limit.
        summarizes_reasoning: whether reasoning is written as a summary instead of text.
        efforts: the accepted values of `reasoning.effort`.
        skips_unknown_types: whether tools of unknown types are ignored with a warning instead of
            refused.
        takes_empty_input: whether the input may be an empty string or list.
        outputs_need_call_ids: whether outputs of function calls must have a `call_id`.
        takes_stream_options: whether `stream_options` is accepted.
        takes_logprobs_field: whether `logprobs` is accepted in a stream.
        echoes_response_format: whether `response_format` is repeated as `text.format`.
    """

    id_separator: str = "_"
    names_events: bool = True
    has_error_events: bool = True
    length_reason: str = "max_output_tokens"
    summarizes_reasoning: bool = False
    efforts: tuple[str, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    skips_unknown_types: bool = True
    takes_empty_input: bool = True
    outputs_need_call_ids: bool = True
    takes_stream_options: bool = True
    takes_logprobs_field: bool = True
    echoes_response_format: bool = True


@dataclass(frozen=True, slots=True)
class Dialect:
    """The protocol details of one family of clients. The defaults are OpenAI's.

    Attributes:
        name: the dialect's name in logs and tests.
        prefixes: URL prefixes, each serving the same routes.
        error_form: the format of errors.
        malformed_body_status: the status for a body that is not a JSON object.
        body_level_fields: fields whose errors count as a malformed body.
        model_required: whether a request must name its model.
        unknown_model: the error about a model that is not served, with braces for its name.
        refuses_null: fields in which null is not the same as absent, in the order in which they are
            checked.
        default_max_tokens: the default for completions; None = the model's default, or its context
            if it has none.
        clamps_max_tokens: whether a `max_tokens` beyond the context or the model's limit is lowered
            instead of refused.
        max_stop_strings: the maximum number of stop strings; None = only the server's own limit.
        stop_in_streams: whether a stream includes, by default, the stop string that ended it.
        strict_stream_options: whether unknown `stream_options` are refused.
        best_of_is_beam_search: whether `best_of` is the number of beams, limited by the model and
            not available in streams.
        has_ids: whether responses carry `id`, `system_fingerprint` and `stop_reason`.
        has_meta: whether rerank answers have Cohere's `meta`.
        stream_object: the `object` of a completion's stream chunks.
        handshake: whether a stream begins with an empty chunk if the first token has no text yet.
        takes_text_for_messages: whether `messages` may be a string.
        takes_image_url_strings: whether `image_url` of a part may be the URL itself.
        completes_vision_models: whether vision models accept prompts without messages.
        flat_tools: whether a tool's fields may be given next to its type.
        checks_results: whether the id of a tool result must be that of an earlier call, and unique
            in the turn.
        checks_tool_choice: whether a choice of an unknown tool is refused; otherwise no tool is
            called.
        parses_special_tokens: whether tool calls and reasoning are parsed also with
            `skip_special_tokens: false`.
        continues_roles: whether an answer without a generation prompt gets the role of the last
            message.
        reasoning_members: the fields of a message with its reasoning.
        lists_no_calls: whether a message without calls has an empty list `tool_calls`.
        has_null_content: whether the content of a message with only tool calls is null instead of
            "".
        ends_named_call_with_stop: whether `finish_reason` is "stop" after a call whose function the
            request names.
        responses: the differences in the Responses API.
        text_length: the unit of `text_offset`.
        owned_by: the field of model cards; `describes_models` adds vLLM's fields to the cards.
    """

    name: str = "openai"
    prefixes: tuple[str, ...] = ("/v1",)
    error_form: ErrorForm = OPENAI_ERRORS
    malformed_body_status: int = 400
    body_level_fields: frozenset[str] = frozenset()
    model_required: bool = False
    unknown_model: str = "The model `{}` does not exist."
    refuses_null: tuple[str, ...] = ()
    default_max_tokens: int | None = 16
    clamps_max_tokens: bool = True
    max_stop_strings: int | None = None
    stop_in_streams: bool = False
    strict_stream_options: bool = False
    best_of_is_beam_search: bool = False
    has_ids: bool = True
    has_meta: bool = False
    stream_object: str = "text_completion"
    handshake: bool = False
    takes_text_for_messages: bool = True
    takes_image_url_strings: bool = True
    completes_vision_models: bool = True
    flat_tools: bool = False
    checks_results: bool = True
    checks_tool_choice: bool = True
    parses_special_tokens: bool = True
    continues_roles: bool = True
    reasoning_members: tuple[str, ...] = ("reasoning_content", "reasoning")
    lists_no_calls: bool = False
    has_null_content: bool = True
    ends_named_call_with_stop: bool = True
    responses: ResponsesStyle = ResponsesStyle()
    text_length: Measure = len
    owned_by: str = "fastovms"
    describes_models: bool = True


OPENAI: Final = Dialect()

OVMS: Final = Dialect(
    name="ovms",
    prefixes=("/v3", "/v3/v1"),
    error_form=OVMS_ERRORS,
    malformed_body_status=412,
    body_level_fields=frozenset({"model", "stream"}),
    model_required=True,
    refuses_null=("stream", "max_tokens"),
    default_max_tokens=None,
    clamps_max_tokens=False,
    max_stop_strings=16,
    stop_in_streams=True,
    strict_stream_options=True,
    best_of_is_beam_search=True,
    has_ids=False,
    stream_object="text_completion.chunk",
    handshake=True,
    takes_text_for_messages=False,
    takes_image_url_strings=False,
    completes_vision_models=False,
    flat_tools=True,
    checks_results=False,
    checks_tool_choice=False,
    parses_special_tokens=False,
    continues_roles=False,
    reasoning_members=("reasoning_content",),
    lists_no_calls=True,
    has_null_content=False,
    ends_named_call_with_stop=False,
    responses=ResponsesStyle(
        id_separator="-",
        names_events=False,
        has_error_events=False,
        length_reason="max_tokens",
        summarizes_reasoning=True,
        efforts=("low", "medium", "high"),
        skips_unknown_types=False,
        takes_empty_input=False,
        outputs_need_call_ids=False,
        takes_stream_options=False,
        takes_logprobs_field=False,
        echoes_response_format=False,
    ),
    text_length=utf8_length,
    owned_by="OVMS",
    describes_models=False,
)

ANTHROPIC: Final = replace(OPENAI, name="anthropic", error_form=ANTHROPIC_ERRORS)
"""The dialect of Anthropic's Messages API, at its own paths below `/v1`."""

OLLAMA: Final = replace(
    OPENAI,
    checks_results=False,
    name="ollama",
    prefixes=("/api",),
    error_form=OLLAMA_ERRORS,
    model_required=True,
    unknown_model="model '{}' not found",
    default_max_tokens=None,
)
"""The dialect of Ollama's API, at paths that no other dialect has."""

COHERE: Final = replace(OPENAI, name="cohere", error_form=COHERE_ERRORS, has_meta=True)
"""The dialect of the newer version of Cohere's API, which has one path."""

DIALECTS: Final = (OPENAI, OVMS)
"""The dialects that serve all endpoints, each below its own prefixes."""

_FAMILIES: Final[Mapping[str, Dialect]] = {
    "/api": OLLAMA,
    "/v1/messages": ANTHROPIC,
    "/v2/rerank": COHERE,
    "/v2": OVMS,
    "/v3": OVMS,
}
"""The dialects of paths and of all below them, longer paths before shorter ones. Those of KServe,
below `/v2`, have OVMS's errors."""


def dialect_of(path: str) -> Dialect:
    """Returns the dialect in which `path` is answered; OpenAI's for paths of no dialect."""
    below = f"{path}/"
    for prefix, dialect in _FAMILIES.items():
        if below.startswith(f"{prefix}/"):
            return dialect
    return OPENAI
