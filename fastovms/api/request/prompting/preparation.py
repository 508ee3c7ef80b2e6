"""Holds one request while its fields are checked: its body, its model, its dialect, and what it
calls its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.bodies.request_schemas import GenerationFields
from fastovms.api.wire.dialect import Dialect
from fastovms.config.api_config import ApiConfig
from fastovms.errors import FieldFault, InvalidField

Body = TypeVar("Body", bound=GenerationFields, covariant=True)


class FieldName(NamedTuple):
    """What a client calls a field.

    Attributes:
        param: its name in the body.
        words: what messages call it: its name, with how it came to ask for something.
    """

    param: str
    words: str


_PROMPT_LOGPROBS = FieldName("prompt_logprobs", "prompt_logprobs")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What a request calls the fields that the endpoints name differently, for messages.

    Attributes:
        prompt: what is continued or answered.
        max_tokens: how long a sample may become.
        logprobs: how many log probabilities are told of each token.
        prompt_logprobs: the same of the prompt's tokens.
        response_format: what the text must look like.
        json_schema: where its schema is a member, with its name and its strictness.
        stop: the strings at which a sample ends.
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
        """Returns what a lower layer has found, with the field named as the client does."""
        names = {
            "messages": FieldName(self.prompt, self.prompt),
            "max_tokens": FieldName(self.max_tokens, self.max_tokens),
            "logprobs": FieldName(self.logprobs, self.logprobs),
            "prompt_logprobs": self.prompt_logprobs,
        }
        return fault.named(*names.get(fault.field, (fault.field, fault.field)))


@dataclass(frozen=True, slots=True)
class Preparation(Generic[Body]):
    """A request that is read, with everything that its checks look at.

    Attributes:
        body: as the client has sent it.
        size: the body's, in bytes.
        client: who asks.
        tenant: the same by its key alone; "" where none is needed.
        priority: stands in for the body's; None = nothing does.
        text_format: stands in for the body's `response_format`, in the form of chats.
    """

    body: Body
    size: int
    model: ServedModel
    dialect: Dialect
    config: ApiConfig
    names: FieldNames
    client: str
    tenant: str = ""
    text_format: Mapping[str, Any] | None = None
    priority: int | None = None

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """What the text must look like, in the form of chats; None = anything."""
        return self.body.response_format if self.text_format is None else self.text_format
