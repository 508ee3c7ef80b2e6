"""The endpoints `/tokenize` and `/detokenize`, in vLLM's format and in OVMS's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fastovms.api import offload
from fastovms.api.body import wrong
from fastovms.api.chat_messages import read_messages
from fastovms.api.chat_tools import read_tools
from fastovms.api.context import ApiContext
from fastovms.api.dialect import DIALECTS, OPENAI, OVMS, AnswerSchema, Dialect
from fastovms.api.endpoint import Operation, Route, endpoint
from fastovms.api.image_parts import image_tokens_unknown, images_of_request
from fastovms.api.logprobs import TokenNames
from fastovms.api.prompt import (
    TemplateFields,
    adds_special_tokens,
    check_token_range,
    encoding_cost,
    render_prompt,
    template_options,
)
from fastovms.api.request_schemas import ModelField
from fastovms.api.served import AnyServed, ServedModel, TextTokens
from fastovms.api.typed_body import Body, read_any_body
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import ModelInfo

_MIN_LIMIT: Final = 2**20
_CHARS_PER_TOKEN: Final = 8


def tokens_of(model: AnyServed) -> TextTokens:
    """Returns the tokenizer of a model that accepts text."""
    assert model.tokens is not None
    return model.tokens


def check_detokenizer(model: AnyServed, param: str) -> None:
    """Raises InvalidField for a model without a detokenizer. Models that generate text always have
    one."""
    if not tokens_of(model).has_detokenizer:
        raise InvalidField.about(
            param,
            f"is not available: the model {model.info.name} was exported without a detokenizer",
        )


def check_length(text: str, name: str, model: ModelInfo) -> None:
    """Raises InvalidField for a text that is many times longer than the context: encoding it would
    hold the GIL and stall all streams."""
    limit = max(_MIN_LIMIT, model.max_model_len * _CHARS_PER_TOKEN)
    if len(text) > limit:
        raise InvalidField.about(name, f"must be at most {limit} characters, not {len(text)}")


MAX_TEXTS: Final = 1024
MAX_PADDED: Final = 2**20
"""The maximum number of tokens, padding included, that padding may make of a request's texts."""


class OvmsTokenizeRequest(ModelField, frozen=True, kw_only=True):
    """The body of OVMS's `/tokenize`."""

    text: str | list[str] | None = None
    max_length: int | None = None
    pad_to_max_length: bool | None = None
    padding_side: str | None = None
    add_special_tokens: bool | None = None


class OvmsTokens(AnswerSchema):
    """The answer of OVMS's `POST /tokenize`: one list for one text, a list of lists for several."""

    tokens: Sequence[int | list[int]]


class OvmsTokenization:
    """The handler of `/tokenize` for every dialect with OVMS's format."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.models
        self._bodies = context.bodies

    async def tokenize(self, request: Request, dialect: Dialect) -> Response:
        """Answers with one list of tokens for one text, a list of lists for several."""
        body, model = await read_any_body(
            request, OvmsTokenizeRequest, self._models, dialect, self._bodies
        )
        texts = _texts(body, model)
        padding = _padding(body, texts)
        num_padded = 0 if padding is None else (body.max_length or 0) * len(texts)
        tokenizer = tokens_of(model)

        def answer() -> bytes:
            token_lists = [
                tokenizer.encode(text, add_special_tokens=body.add_special_tokens is not False)
                for text in texts
            ]
            token_lists = [token_ids[: body.max_length] for token_ids in token_lists]
            if padding is not None:
                token_lists = padding(token_lists, tokenizer.pad_token_id)
            tokens = token_lists[0] if len(token_lists) == 1 else token_lists
            return msgspec.json.encode(OvmsTokens(tokens))

        return Response(200, await offload.run(answer, encoding_cost(texts) + num_padded))


def _texts(body: OvmsTokenizeRequest, model: AnyServed) -> list[str]:
    given = body.text
    if given is None:
        raise InvalidField.about("text", "is required")
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise InvalidField.about("text", "must not be an empty list")
    if len(texts) > MAX_TEXTS:
        raise InvalidField.about("text", f"must have at most {MAX_TEXTS} entries, not {len(texts)}")
    check_length("".join(texts), "text", model.info)
    return texts


Padding = Callable[[list[list[int]], int], list[list[int]]]
"""Fills lists of tokens up with a token."""


def _padding(body: OvmsTokenizeRequest, texts: Sequence[str]) -> Padding | None:
    """Checks the fields for truncation and padding. Returns None for no padding."""
    length = body.max_length
    if length is not None and length < 1:
        raise InvalidField.about("max_length", f"must be at least 1, not {length}")
    side = body.padding_side
    if side not in (None, "left", "right"):
        raise wrong("padding_side", '"left" or "right"', side)
    if body.pad_to_max_length is not True:
        return None
    if length is not None and length * len(texts) > MAX_PADDED:
        raise InvalidField.about(
            "max_length",
            f"must be at most {MAX_PADDED // len(texts)} when pad_to_max_length is "
            f"true, not {length}",
        )

    def pad(token_lists: list[list[int]], pad_token_id: int) -> list[list[int]]:
        width = max(map(len, token_lists)) if length is None else length
        if width * len(token_lists) > MAX_PADDED:
            raise InvalidField.about(
                "text",
                f"must have at most {MAX_PADDED} tokens with its padding, not "
                f"{width * len(token_lists)}: lower max_length, up to which pad_to_max_length "
                "pads",
            )
        filler = [pad_token_id]
        if side == "right":
            return [token_ids + filler * (width - len(token_ids)) for token_ids in token_lists]
        return [filler * (width - len(token_ids)) + token_ids for token_ids in token_lists]

    return pad


class TokenizeRequest(ModelField, frozen=True, kw_only=True):
    """The body of vLLM's `/tokenize`."""

    prompt: str | None = None
    messages: str | list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(ModelField, frozen=True, kw_only=True):
    """The body of vLLM's `/detokenize`."""

    tokens: list[int] | None = None


class Tokens(AnswerSchema):
    """The answer of vLLM's `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(AnswerSchema):
    """The answer of `POST /detokenize`."""

    prompt: str


class Tokenization:
    """The handlers of `/tokenize` and `/detokenize` in vLLM's format."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.models
        self._bodies = context.bodies

    async def tokenize(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the tokens of a prompt, or of messages as rendered by the chat template,
        counted as `usage` counts them."""
        body, model = await self._read(request, TokenizeRequest, dialect)
        tokenizer = tokens_of(model)
        if body.return_token_strs:
            check_detokenizer(model, "return_token_strs")
        if (body.prompt is None) == (body.messages is None):
            reason = "is required" if body.prompt is None else "cannot be used with messages"
            raise InvalidField.about("prompt", f"{reason}")

        def answer() -> bytes:
            text, name, special = _text(body, model, dialect)
            check_length(text, name, model.info)
            token_ids = tokenizer.encode(text, add_special_tokens=special)
            names = TokenNames(tokenizer.token_bytes)
            texts = [*map(names, token_ids)] if body.return_token_strs else None
            return msgspec.json.encode(
                Tokens(len(token_ids), model.info.max_model_len, token_ids, texts)
            )

        if not isinstance(model, ServedModel):
            return Response(200, await offload.run(answer, len(request.body)))
        data = await model.chat.rendered(request.sender, answer, len(request.body))
        return Response(200, data)

    async def _read(
        self, request: Request, schema: type[Body], dialect: Dialect
    ) -> tuple[Body, AnyServed]:
        return await read_any_body(request, schema, self._models, dialect, self._bodies)

    async def detokenize(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the text, special tokens included."""
        body, model = await self._read(request, DetokenizeRequest, dialect)
        check_detokenizer(model, "tokens")
        tokenizer = tokens_of(model)
        token_ids = body.tokens
        if token_ids is None:
            raise InvalidField.about("tokens", "is required")
        check_token_range(token_ids, "tokens", model.info)

        def answer() -> bytes:
            text = tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
            return msgspec.json.encode(DetokenizedText(text))

        return Response(200, await offload.run(answer, len(token_ids)))


def _text(body: TokenizeRequest, model: AnyServed, dialect: Dialect) -> tuple[str, str, bool]:
    """Returns the text to encode, the name of its field, and whether special tokens are added."""
    if body.prompt is not None:
        return body.prompt, "prompt", body.add_special_tokens is not False
    if not isinstance(model, ServedModel):
        raise InvalidField.about(
            "messages", f"cannot be used: the model {model.info.name} is not a chat model"
        )
    fields = TemplateFields(
        body.add_generation_prompt,
        body.continue_final_message,
        source=body.chat_template,
        kwargs=body.chat_template_kwargs,
    )
    options = template_options(model, fields)
    messages, images, _ = read_messages(body.messages, dialect, images_of_request(model.images))
    if images:
        raise image_tokens_unknown(images[0])
    tools = read_tools(body.tools, None, None, dialect)
    text = render_prompt(messages, tools, options, model)
    return text, "messages", adds_special_tokens(body.add_special_tokens)


_SECTION: Final = "Tokens"
_TOKENIZE: Final = Operation(
    "Returns the token ids of a prompt or of messages, in vLLM's format.",
    Tokens,
    _SECTION,
    body=TokenizeRequest,
    examples="tokenize",
)
_OVMS_TOKENIZE: Final = Operation(
    "Returns the token ids of one or several texts, in OVMS's format.",
    OvmsTokens,
    _SECTION,
    body=OvmsTokenizeRequest,
    required=("text",),
    examples="tokenize in OVMS's format",
)
_DETOKENIZE: Final = Operation(
    "Returns the text of token ids, in vLLM's format.",
    DetokenizedText,
    _SECTION,
    body=DetokenizeRequest,
    required=("tokens",),
    examples="detokenize",
)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes that tokenize."""
    ours, of_ovms = Tokenization(context), OvmsTokenization(context)
    for dialect in DIALECTS:
        answer, operation = ours.tokenize, _TOKENIZE
        if dialect is OVMS:
            answer, operation = of_ovms.tokenize, _OVMS_TOKENIZE
        tokenize, detokenize = endpoint(answer, dialect), endpoint(ours.detokenize, dialect)
        for prefix in (*dialect.prefixes, "") if dialect is OPENAI else dialect.prefixes:
            yield Route("POST", f"{prefix}/tokenize", tokenize, operation)
            yield Route("POST", f"{prefix}/detokenize", detokenize, _DETOKENIZE)
