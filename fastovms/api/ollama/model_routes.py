"""Answers what Ollama's clients ask about models, and refuses to make, fetch and remove any: the
operator says which there are."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.generation.context import ApiContext
from fastovms.api.ollama.answer_lines import JSON_LINES
from fastovms.api.ollama.model_cards import full_card, list_card, running_card
from fastovms.api.ollama.ollama_schema import OllamaNamed
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import ModelNotFound, RequestError
from fastovms.http.routing.messages import Request, Response
from fastovms.text.tokens.fim import FimFinder

OLLAMA_VERSION: Final = "0.12.11"
"""The version of Ollama whose API this is: some clients ask for one at least."""

_LINES: Final = ({"status": "pulling manifest"}, {"status": "success"})


class OllamaModels:
    """The handlers."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._fim = FimFinder()

    def version(self, request: Request) -> Response:
        return _json({"version": OLLAMA_VERSION})

    def tags(self, request: Request) -> Response:
        """Lists the models, under all of their names."""
        known = self._context.models.known
        return _json(
            {"models": [list_card(model, name) for model in known for name in model.names]}
        )

    def ps(self, request: Request) -> Response:
        """Lists the models in memory."""
        now, holder = self._context.unix_time(), self._context.models.holder
        cards = []
        for model in self._context.models.known:
            if model.served is not None:
                seconds = None if holder is None else holder.seconds_to_leave(model.name)
                cards.append(running_card(model, now, seconds))
        return _json({"models": cards})

    async def show(self, request: Request, dialect: Dialect) -> Response:
        """Describes one model.

        Raises:
            RequestError: there is no such model, or the body is malformed.
        """
        _, model = await self._find(request, dialect)
        served = model.served
        fills_in = isinstance(served, ServedModel) and self._fim(served.tokenizer) is not None
        return _json(full_card(model, fills_in=fills_in))

    async def pull(self, request: Request, dialect: Dialect) -> Response:
        """Answers for a model that is served that it is there. Raises as `show` does."""
        try:
            body, _ = await self._find(request, dialect)
        except ModelNotFound as error:
            raise ModelNotFound(
                f"{error.message}, and none is pulled: this server has the models that it was "
                "started with",
                param=error.param,
            ) from None
        if body.stream is False:
            return _json({"status": "success"})
        lines = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in _LINES)
        return Response(200, lines, JSON_LINES)

    async def refuse(self, request: Request, dialect: Dialect) -> Response:
        """Refuses what changes which models there are. Raises RequestError."""
        what = request.path.removeprefix("/api/").partition("/")[0]
        raise RequestError(
            f"this server does not do {what}: it has the models that it was started with"
        )

    async def _find(self, request: Request, dialect: Dialect) -> tuple[OllamaNamed, KnownModel]:
        body = await self._context.bodies.read(request, OllamaNamed)
        return body, self._context.models.find(body.model or body.name, dialect)


def _json(content: object) -> Response:
    return Response(200, orjson.dumps(content))
