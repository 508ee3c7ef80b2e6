"""Answers `POST /score`, in vLLM's form: how well texts go together, one with many or each with
another."""

from __future__ import annotations

from typing import Final

import orjson

from fastovms.api.embeddings.embedding_schemas import ScoreRequest
from fastovms.api.embeddings.embeddings import input_names
from fastovms.api.embeddings.encoding_call import encoding_call
from fastovms.api.embeddings.encoding_options import answer_id, check_priority, encoding_usage
from fastovms.api.embeddings.pair_options import read_pair_options
from fastovms.api.embeddings.pair_scores import score_pairs
from fastovms.api.embeddings.pairs import Pair, PairTexts
from fastovms.api.embeddings.rerank import TASKS
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.typed_body import read_encoder_body
from fastovms.api.wire.dialect import Dialect
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import GenerationKind

_NAMES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""What the two sides may be called."""


class ScoreRoute:
    """The handler of `POST /score`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request.

        Raises:
            RequestError, BackendError: there is no answer.
        """
        context = self._context
        body, model = await read_encoder_body(
            request, ScoreRequest, context.models, dialect, context.bodies, TASKS
        )
        check_priority(body, dialect)
        texts, pairs = _read_pairs(body, model.config.max_inputs)
        options = read_pair_options(body, model, chunks=False, priority=request.priority)
        name = answer_id(body, "score-", context.new_id())
        call = encoding_call(
            context, request, model, GenerationKind.SCORE, body.model, response_id=name
        )
        found = await score_pairs(call, texts, pairs, options)
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(found.scores.tolist())
        ]
        answer = {
            "id": name,
            "object": "list",
            "created": int(context.unix_time()),
            "model": model.info.name,
            "data": data,
            "usage": encoding_usage(found.num_tokens),
        }
        return Response(200, orjson.dumps(answer))


def _read_pairs(body: ScoreRequest, max_inputs: int) -> tuple[PairTexts, list[Pair]]:
    """Returns the texts of both sides, and which go together.

    Raises:
        InvalidField: a side is absent, empty or too long, or the lengths do not go together.
    """
    first, second = _sides(body)
    (queries, query_names), (documents, document_names) = (
        _side(body, name, max_inputs) for name in (first, second)
    )
    texts = PairTexts(queries, documents, query_names, document_names)
    num_queries, num_documents = len(texts.queries), len(texts.documents)
    if num_queries not in (1, num_documents):
        raise InvalidField(
            f"{first} must have one text, or as many as {second} has: {num_documents}, not "
            f"{num_queries}",
            param=first,
        )
    pairs = [Pair(i if num_queries > 1 else 0, i) for i in range(num_documents)]
    return texts, pairs


def _sides(body: ScoreRequest) -> tuple[str, str]:
    """Returns what the request calls its two sides."""
    given = [name for pair in _NAMES for name in pair if getattr(body, name) is not None]
    for pair in _NAMES:
        if set(given) == set(pair):
            return pair
    forms = ", ".join(f"{first} and {second}" for first, second in _NAMES)
    first = given[0] if given else "text_1"
    raise InvalidField(f"the texts must be two of these fields: {forms}", param=first)


def _side(body: ScoreRequest, name: str, max_inputs: int) -> tuple[list[str], list[str]]:
    """Returns the texts of one side, and how messages call them."""
    given = getattr(body, name)
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise InvalidField(f"{name} must not be an empty list", param=name)
    if len(texts) > max_inputs:
        raise InvalidField(
            f"{name} must have at most {max_inputs} entries, not {len(texts)}", param=name
        )
    return texts, input_names(texts, name, is_list=isinstance(given, list))
