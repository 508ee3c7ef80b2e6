"""The record of a client's request, the same for all endpoints that generate text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fastovms.api.dialect import Dialect
from fastovms.api.request_schemas import GenerationFields
from fastovms.api.served import ServedModel
from fastovms.config import ApiConfig
from fastovms.errors import FieldFault, InvalidField
from fastovms.http.messages import Caller

Body = TypeVar("Body", bound=GenerationFields, covariant=True)


class FieldName(NamedTuple):
    """The client's name of a request field.

    Attributes:
        param: its name in the body.
        words: its description in error messages.
    """

    param: str
    words: str


_PROMPT_LOGPROBS: Final = FieldName("prompt_logprobs", "prompt_logprobs")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The client's names of fields that differ between endpoints, for error messages.

    Attributes:
        prompt: the field of the input.
        max_tokens: the limit of generated tokens.
        logprobs: the number of log probabilities reported for each token.
        prompt_logprobs: the number for each prompt token.
        response_format: the output format.
        json_schema: the field of the format with the schema, its name and `strict`.
        stop: the stop strings.
    """

    prompt: str
    max_tokens: str
    logprobs: str
    prompt_logprobs: FieldName = _PROMPT_LOGPROBS
    response_format: str = "response_format"
    json_schema: str = "response_format.json_schema"
    stop: str = "stop"

    def prompt_at(self, position: int, num_prompts: int) -> str:
        """Returns the name of one of the prompts."""
        return self.prompt if num_prompts == 1 else f"{self.prompt}[{position}]"

    def named(self, fault: FieldFault) -> InvalidField:
        """Converts the error of a lower layer to one with the client's name of the field."""
        names = {
            "messages": FieldName(self.prompt, self.prompt),
            "max_tokens": FieldName(self.max_tokens, self.max_tokens),
            "logprobs": FieldName(self.logprobs, self.logprobs),
            "prompt_logprobs": self.prompt_logprobs,
        }
        return fault.named(*names.get(fault.field, (fault.field, fault.field)))


class RequestDocument(NamedTuple):
    """A part of a request that contains a file.

    Attributes:
        place: its path in the request.
        members: the object with the content, or the id of an uploaded file.
        is_new: whether it is part of the new message, not of an older one.
        take: receives the file's text.
        data_member: the field with the content, in base64.
    """

    place: str
    members: Mapping[str, Any]
    is_new: bool
    take: Callable[[str], None]
    data_member: str = "file_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest(Generic[Body]):
    """A decoded request: the sender and the body.

    Attributes:
        id: the prefix of the ids of its prompts in the engine.
        body: the decoded body.
        size: the size of the body and its documents in bytes.
        names: the client's names of the body's fields.
        caller: the API key's data. Its priority, if set, replaces the body's.
        client: the API key or address, for sharing the engine fairly.
        text_format: replaces the body's `response_format`, in Chat Completions format.
    """

    id: str
    body: Body
    size: int
    model: ServedModel
    dialect: Dialect
    config: ApiConfig
    names: FieldNames
    caller: Caller
    client: str
    text_format: Mapping[str, Any] | None = None

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """The constraint on the text, in Chat Completions format; None = any text."""
        return self.body.response_format if self.text_format is None else self.text_format

    @property
    def skips_special_tokens(self) -> bool:
        """Whether special tokens are left out of the answer's text."""
        return self.body.skip_special_tokens is not False

    @property
    def parses(self) -> bool:
        """Whether the answers to a chat are parsed for tool calls and reasoning."""
        return self.skips_special_tokens or self.dialect.parses_special_tokens
