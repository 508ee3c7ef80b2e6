"""Schemas of administration, batches, embeddings and Ollama's API."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from fastovms.api.dialect import AnswerSchema
from fastovms.api.logprobs import TokenLogprob

# Declares the answers about models, tokens and the server.


# Declares the answers of Ollama's API: texts, whole and as lines of a stream, and models.


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
