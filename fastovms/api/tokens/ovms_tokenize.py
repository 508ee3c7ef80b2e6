"""Answers `POST /tokenize` in OVMS's form: tokens of one text or several, padded where asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from fastovms.api.generation.context import ApiContext
from fastovms.api.request.prompting import offload
from fastovms.api.request.prompting.prompts import encoding_cost
from fastovms.api.request.typed_body import read_any_body
from fastovms.api.serving.served import AnyServed
from fastovms.api.tokens.text_tokens import check_length, tokens_of
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.bodies.request_schemas import ModelField
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response

MAX_TEXTS: Final = 1024
MAX_PADDED: Final = 2**20
"""The most tokens, padding included, that padding may make of a request's texts."""


class OvmsTokenizeRequest(ModelField, frozen=True, kw_only=True):
    """The body of OVMS's `/tokenize`."""

    text: str | list[str] | None = None
    max_length: int | None = None
    pad_to_max_length: bool | None = None
    padding_side: str | None = None
    add_special_tokens: bool | None = None


class OvmsTokenization:
    """The handler, for every dialect that takes OVMS's form."""

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
            return orjson.dumps(
                {"tokens": token_lists[0] if len(token_lists) == 1 else token_lists}
            )

        return Response(200, await offload.run(answer, encoding_cost(texts) + num_padded))


def _texts(body: OvmsTokenizeRequest, model: AnyServed) -> list[str]:
    given = body.text
    if given is None:
        raise InvalidField("text is required", param="text")
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise InvalidField("text must not be an empty list", param="text")
    if len(texts) > MAX_TEXTS:
        raise InvalidField(
            f"text must have at most {MAX_TEXTS} entries, not {len(texts)}", param="text"
        )
    check_length("".join(texts), "text", model.info)
    return texts


Padding = Callable[[list[list[int]], int], list[list[int]]]
"""Fills lists of tokens up with a token."""


def _padding(body: OvmsTokenizeRequest, texts: Sequence[str]) -> Padding | None:
    """Checks the fields that have to do with length. None = the lists of tokens keep their
    lengths."""
    length = body.max_length
    if length is not None and length < 1:
        raise InvalidField(f"max_length must be at least 1, not {length}", param="max_length")
    side = body.padding_side
    if side not in (None, "left", "right"):
        raise InvalidField(
            f'padding_side must be "left" or "right", not {show(side)}', param="padding_side"
        )
    if body.pad_to_max_length is not True:
        return None
    if length is not None and length * len(texts) > MAX_PADDED:
        raise InvalidField(
            f"max_length must be at most {MAX_PADDED // len(texts)} when pad_to_max_length is "
            f"true, not {length}",
            param="max_length",
        )

    def pad(token_lists: list[list[int]], pad_token_id: int) -> list[list[int]]:
        width = max(map(len, token_lists)) if length is None else length
        if width * len(token_lists) > MAX_PADDED:
            raise InvalidField(
                f"text must make at most {MAX_PADDED} tokens with its padding, not "
                f"{width * len(token_lists)}: max_length bounds what pad_to_max_length fills up to",
                param="text",
            )
        filler = [pad_token_id]
        if side == "right":
            return [token_ids + filler * (width - len(token_ids)) for token_ids in token_lists]
        return [filler * (width - len(token_ids)) + token_ids for token_ids in token_lists]

    return pad
