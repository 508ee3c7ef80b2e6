"""Answers `POST /rerank`, in Cohere's form: documents, sorted by how well they answer a query."""

from __future__ import annotations

from typing import Final

import numpy as np
import orjson

from fastovms.api.embeddings.embedding_schemas import RerankRequest
from fastovms.api.embeddings.encoding_call import encoding_call
from fastovms.api.embeddings.encoding_options import answer_id, check_priority, encoding_usage
from fastovms.api.embeddings.pair_options import read_pair_options
from fastovms.api.embeddings.pair_scores import PairScores, score_pairs
from fastovms.api.embeddings.pairs import Pair, PairTexts
from fastovms.api.generation.context import ApiContext
from fastovms.api.request.prompting import offload
from fastovms.api.request.typed_body import read_encoder_body
from fastovms.api.wire.bodies.body import show
from fastovms.api.wire.dialect import Dialect
from fastovms.encoding import Task
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request, Response
from fastovms.telemetry.tracing import GenerationKind

TASKS: Final = (Task.RERANK, Task.EMBEDDINGS)
"""What models may do that score pairs."""


class RerankRoute:
    """The handler of `POST /rerank`, for every dialect."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, request: Request, dialect: Dialect) -> Response:
        """Answers a request.

        Raises:
            RequestError, BackendError: there is no answer.
        """
        context = self._context
        body, model = await read_encoder_body(
            request, RerankRequest, context.models, dialect, context.bodies, TASKS
        )
        check_priority(body, dialect)
        texts = _texts(body, model.config.max_allowed_chunks)
        top_n = _top_n(body, len(texts.documents))
        options = read_pair_options(
            body, model, chunks=not dialect.has_ids, priority=request.priority
        )
        name = answer_id(body, "rerank-", context.new_id())
        pairs = [Pair(0, position) for position in range(len(texts.documents))]
        call = encoding_call(
            context,
            request,
            model,
            GenerationKind.RERANK,
            body.model,
            response_id=name if dialect.has_ids else "",
        )
        found = await score_pairs(call, texts, pairs, options)
        # vLLM always returns the documents.
        returns = dialect.has_ids if body.return_documents is None else body.return_documents
        head: dict[str, object] = {}
        if dialect.has_ids:
            usage = encoding_usage(found.num_tokens)
            head = {"id": name, "model": model.info.name, "usage": usage}
        if dialect.has_meta:
            head["meta"] = _meta(found.num_tokens)

        def write() -> bytes:
            return orjson.dumps({**head, "results": _results(found, texts, top_n, returns)})

        cost = sum(map(len, texts.documents)) if returns else len(texts.documents)
        return Response(200, await offload.run(write, cost))


def _meta(num_tokens: int) -> dict[str, object]:
    """Returns what Cohere's clients are told beside the results, but for what is billed: nothing
    is."""
    return {"api_version": {"version": "2"}, "tokens": {"input_tokens": num_tokens}}


def _results(
    found: PairScores, texts: PairTexts, top_n: int, returns: bool
) -> list[dict[str, object]]:
    results = []
    for index in np.argsort(-found.scores, kind="stable")[:top_n].tolist():
        result: dict[str, object] = {"index": index, "relevance_score": float(found.scores[index])}
        if returns:
            result["document"] = {"text": texts.documents[index]}
        results.append(result)
    return results


def _texts(body: RerankRequest, max_documents: int) -> PairTexts:
    if body.query is None:
        raise InvalidField("query is required", param="query")
    if not body.query:
        raise InvalidField("query must not be an empty string", param="query")
    if body.rank_fields is not None:
        raise InvalidField("rank_fields is not supported", param="rank_fields")
    given = body.documents
    if not given:
        reason = "is required" if given is None else "must not be an empty list"
        raise InvalidField(f"documents {reason}", param="documents")
    if len(given) > max_documents:
        raise InvalidField(
            f"documents must have at most {max_documents} entries, not {len(given)}",
            param="documents",
        )
    documents, names = [], []
    for position, document in enumerate(given):
        name = f"documents[{position}]"
        text: object = document
        if isinstance(document, dict):
            text, name = document.get("text"), f"{name}.text"
        if not isinstance(text, str) or not text:
            raise InvalidField(
                f"{name} must be a string that is not empty, not {show(text)}", param=name
            )
        documents.append(text)
        names.append(name)
    return PairTexts([body.query], documents, ["query"], names)


def _top_n(body: RerankRequest, num_documents: int) -> int:
    """Returns how many results there are; 0 = all, as in vLLM."""
    given = body.top_n
    if given is not None and given < 0:
        raise InvalidField(f"top_n must be at least 0, not {show(given)}", param="top_n")
    return given or num_documents
