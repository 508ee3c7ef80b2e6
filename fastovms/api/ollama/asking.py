"""Holds one request of Ollama's API while it is prepared: its body, and the same in the fields that
the pipeline takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastovms.api.generation.context import ApiContext
from fastovms.api.ollama.ollama_options import read_options
from fastovms.api.ollama.ollama_schema import (
    AskedFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaTextFields,
)
from fastovms.api.request.prompting.preparation import FieldNames, Preparation
from fastovms.api.serving.served import ServedModel
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request

_MAX_TOP_LOGPROBS: Final = 20


@dataclass(frozen=True, slots=True)
class Asking:
    """What a request asks for.

    Attributes:
        num_predict: how many tokens are generated at most; None = no number is given.
        top_logprobs: how many alternatives are told of each token; None = nothing is told of the
            tokens.
        warnings: what of the options is not done.
    """

    body: OllamaTextFields
    preparation: Preparation[AskedFields]
    num_predict: int | None
    top_logprobs: int | None
    warnings: Sequence[str]

    @property
    def model_name(self) -> str:
        """The model's name as the client calls it."""
        return self.body.model or self.preparation.model.info.name


def asking(
    context: ApiContext,
    request: Request,
    body: OllamaChatRequest | OllamaGenerateRequest,
    model: ServedModel,
    dialect: Dialect,
) -> Asking:
    """Reads the fields that both endpoints share.

    Raises:
        InvalidField: one is at fault.
    """
    options = read_options(body.options, model.info)
    is_chat = isinstance(body, OllamaChatRequest)
    texts = ("messages",) if is_chat else ("prompt", "suffix", "system")
    fields = AskedFields(
        model=body.model,
        stream=body.stream is not False,  # a stream is the default here
        **{name: getattr(body, name) for name in texts},
        **options.fields,
    )
    names = FieldNames(
        texts[0],
        "options.num_predict",
        "top_logprobs",
        response_format="format",
        json_schema="format",
    )
    request.log_fields["stream"] = fields.stream
    preparation = Preparation(
        fields,
        len(request.body),
        model,
        dialect,
        context.config,
        names,
        request.sender,
        request.tenant,
        _text_format(body.format),
    )
    return Asking(body, preparation, options.num_predict, _top_logprobs(body), options.warnings)


def _text_format(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns what the text must look like, in the form of chats; None = anything."""
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, str):
        raise InvalidField(
            f'format must be "json" or a JSON schema, not {show(given)}', param="format"
        )
    return {"type": "json_object", "schema": given}


def _top_logprobs(body: OllamaTextFields) -> int | None:
    most = body.top_logprobs
    if most is not None and not 0 <= most <= _MAX_TOP_LOGPROBS:
        raise InvalidField(
            f"top_logprobs must be at least 0 and at most {_MAX_TOP_LOGPROBS}, not {most}",
            param="top_logprobs",
        )
    if body.logprobs:
        return most or 0
    if most:
        raise InvalidField(
            "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
        )
    return None
