"""Answers `POST /tokenize` and `/detokenize` in vLLM's form."""

from __future__ import annotations

from typing import Any

import orjson

from fastovms.api.conversation.chat_messages import read_messages
from fastovms.api.conversation.chat_prompt import (
    TemplateFields,
    adds_special_tokens,
    render_prompt,
    template_options,
)
from fastovms.api.conversation.chat_tools import read_tools
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import check_token_range
from fastovms.api.request.tokens.logprob_formats import TokenNames
from fastovms.api.request.typed_body import Body, read_any_body
from fastovms.api.serving.images import image_tokens_unknown, images_of_request
from fastovms.api.serving.served import AnyServed
from fastovms.api.serving.served_encoder import ServedEncoder
from fastovms.api.tokens.text_tokens import check_detokenizer, check_length, tokens_of
from fastovms.api.wire.bodies.request_schemas import ModelField
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response


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


class Tokenization:
    """The handlers. OVMS has a form of its own for what `tokenize` takes."""

    def __init__(self, context: ApiContext) -> None:
        self._models = context.models
        self._bodies = context.bodies

    async def tokenize(self, request: Request, dialect: Dialect) -> Response:
        """Answers with the tokens of a prompt, or of messages as the chat template writes them.
        They are counted as `usage` counts them."""
        body, model = await self._read(request, TokenizeRequest, dialect)
        tokenizer = tokens_of(model)
        if body.return_token_strs:
            check_detokenizer(model, "return_token_strs")
        if (body.prompt is None) == (body.messages is None):
            reason = "is required" if body.prompt is None else "cannot be used with messages"
            raise InvalidField(f"prompt {reason}", param="prompt")

        def answer() -> bytes:
            text, name, special = _text(body, model, dialect)
            check_length(text, name, model.info)
            token_ids = tokenizer.encode(text, add_special_tokens=special)
            names = TokenNames(tokenizer.token_bytes)
            return orjson.dumps(
                {
                    "count": len(token_ids),
                    "max_model_len": model.info.max_model_len,
                    "tokens": token_ids,
                    "token_strs": [*map(names, token_ids)] if body.return_token_strs else None,
                }
            )

        return Response(200, await offload.run(answer, len(request.body)))

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
            raise InvalidField("tokens is required", param="tokens")
        check_token_range(token_ids, "tokens", model.info)

        def answer() -> bytes:
            text = tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
            return orjson.dumps({"prompt": text})

        return Response(200, await offload.run(answer, len(token_ids)))


def _text(body: TokenizeRequest, model: AnyServed, dialect: Dialect) -> tuple[str, str, bool]:
    """Returns what is encoded, the name of its field, and whether special tokens are added to
    it."""
    if body.prompt is not None:
        return body.prompt, "prompt", body.add_special_tokens is not False
    if isinstance(model, ServedEncoder):
        raise InvalidField(
            f"messages cannot be used: the model {model.info.name} chats with nobody",
            param="messages",
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
