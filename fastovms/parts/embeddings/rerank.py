"""Endpoints `/rerank` and `/score`: relevance scores of pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from fastovms.api import offload
from fastovms.api.body import wrong
from fastovms.api.context import ApiContext
from fastovms.api.dialect import COHERE, DIALECTS, OPENAI, AnswerSchema, Dialect
from fastovms.api.endpoint import Operation, Route, endpoint, json_response
from fastovms.api.prompt import context_exceeded
from fastovms.errors import InvalidField
from fastovms.http.messages import Request, Response
from fastovms.params import ModelInfo, Task
from fastovms.parts.embeddings.embeddings import (
    EmbeddingList,
    EmbeddingRequest,
    EncodingCall,
    EncodingUsage,
    InputText,
    RerankRequest,
    ScoreRequest,
    TextLimit,
    answer_embeddings,
    answer_id,
    check_texts,
    default_limit,
    encoding_call,
    input_names,
    instructed,
    normalized,
    num_units,
    read_encoding,
    read_limit,
    together_exceeded,
    tokenize,
)
from fastovms.parts.embeddings.encoder import EncoderText
from fastovms.parts.embeddings.pair_form import FixedTexts
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.telemetry.tracing import GenerationKind
from fastovms.text.text_encoder import FIRST, SECOND, PairTemplate, TokenIds


def read_pair_options(
    body: RerankRequest | ScoreRequest, model: ServedEncoder, *, chunks: bool
) -> PairOptions:
    """Returns the options for scoring pairs. Raises InvalidField if a value is out of range or not
    supported by the model. `chunks` is whether documents that are too long are scored in chunks;
    otherwise they are refused."""
    limit = read_limit(body, model, 0)
    if limit.keeps_end:
        raise InvalidField(
            'truncation_side must be "right": the beginning of each pair is kept',
            param="truncation_side",
        )
    parts = body.max_chunks_per_doc if isinstance(body, RerankRequest) else None
    if parts is not None and parts < 1:
        raise wrong("max_chunks_per_doc", "at least 1", parts)
    length = body.max_tokens_per_doc if isinstance(body, RerankRequest) else None
    if length is not None and length < 0:
        raise wrong("max_tokens_per_doc", "at least 0", length)
    if body.instruct is not None and model.form is None:
        raise InvalidField(
            f"instruct cannot be used with the model {model.info.name}, which reads no instruction",
            param="instruct",
        )
    if body.instruct is not None and len(body.instruct) > _MAX_INSTRUCT:
        raise InvalidField(
            f"instruct must have at most {_MAX_INSTRUCT} characters, not {len(body.instruct)}",
            param="instruct",
        )
    if length and model.joins_pairs and model.form is None:
        raise InvalidField(
            f"max_tokens_per_doc cannot be used with the model {model.info.name}, which reads a "
            "query and a document as one text",
            param="max_tokens_per_doc",
        )
    return PairOptions(
        limit.max_tokens,
        limit.truncates,
        (chunks or parts is not None) and not limit.truncates,
        parts,
        model.config.max_allowed_chunks,
        body.use_activation is not False,
        length or None,
        body.instruct,
    )


_MAX_INSTRUCT: Final = 16_000
"""The maximum number of characters of an instruction, which is tokenized at once in some
milliseconds."""


class Pair(NamedTuple):
    """The indices of a query and a document among the texts of a request."""

    query: int
    document: int


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a request that scores pairs.

    Attributes:
        query_names, document_names: the fields of the texts, for error messages.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    query_names: Sequence[str]
    document_names: Sequence[str]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """The options for scoring pairs.

    Attributes:
        max_tokens: the maximum tokens of a pair, including special tokens.
        truncates: whether pairs that are too long are truncated, the longer text first.
        chunks: whether documents that are too long are scored in chunks, of which the best score
            counts.
        max_chunks_per_document: further chunks are ignored; None = no limit.
        max_chunks: the maximum chunks of all pairs together.
        uses_activation: whether scores are between 0 and 1; otherwise they are logits.
        max_document_tokens: documents are truncated to this length; None = not truncated.
        instruct: the instruction for the scoring; None = the model's configured one.
    """

    max_tokens: int
    truncates: bool = False
    chunks: bool = False
    max_chunks_per_document: int | None = None
    max_chunks: int = 10_000
    uses_activation: bool = True
    max_document_tokens: int | None = None
    instruct: str | None = None


class FittedPair(NamedTuple):
    """A pair that fits into the context, or one chunk of a pair that does not.

    Attributes:
        owner: the index of the pair in the request.
        query_length: the number of tokens of the query that are kept.
        start, stop: the range of the document's tokens.
    """

    owner: int
    query_length: int
    start: int
    stop: int


class PairTokens(NamedTuple):
    """The token ids of the texts of a request, without special tokens. `query_end` are
    prompt tokens that follow each query; truncation of a query keeps them."""

    queries: Sequence[TokenIds]
    documents: Sequence[TokenIds]
    query_end: TokenIds


def fit_pairs(
    pairs: Sequence[Pair],
    tokens: PairTokens,
    texts: PairTexts,
    options: PairOptions,
    room: int,
    model: ModelInfo,
    max_together: int,
) -> list[FittedPair]:
    """Returns the pairs, truncated or in chunks, that fit into the model's context, in order.
    Raises InvalidField if a pair is too long, or all pairs together have more than `max_together`
    tokens. `room` is the maximum tokens of query and document together."""
    found: list[FittedPair] = []
    num_tokens = 0
    for owner, (query, document) in enumerate(pairs):
        length, other = len(tokens.queries[query]), len(tokens.documents[document])
        name = texts.document_names[document]
        if length + other > room and not options.truncates and not options.chunks:
            raise context_exceeded(
                f"the pair has {length + other} tokens, and {options.max_tokens - room} "
                "special tokens are added",
                model,
                name,
            )
        for part in _parts(owner, length, other, room, options):
            found.append(part)
            num_tokens += part.query_length + part.stop - part.start
        if len(found) > options.max_chunks:
            raise InvalidField(
                f"documents must have at most {options.max_chunks} entries, where a document "
                "that is split to fit the model counts once per part",
                param="documents",
            )
        if num_tokens > max_together:
            raise together_exceeded(max_together, name)
    return found


def _parts(
    owner: int, query: int, document: int, room: int, options: PairOptions
) -> Iterator[FittedPair]:
    """Yields the truncated pair, or a pair for each chunk of its document."""
    if query + document <= room:
        yield FittedPair(owner, query, 0, document)
    elif options.truncates:
        kept = longest_first(query, document, room)
        yield FittedPair(owner, kept[0], 0, kept[1])
    else:
        query = min(query, max(1, room // 2))
        size = room - query
        for start in range(0, document, size)[: options.max_chunks_per_document]:
            yield FittedPair(owner, query, start, min(start + size, document))


def join_pairs(
    fitted: Iterable[FittedPair], pairs: Sequence[Pair], tokens: PairTokens, template: PairTemplate
) -> list[EncoderText]:
    """Returns the model's inputs, joined in the tokenizer's format for pairs."""
    found = []
    for owner, query_length, start, stop in fitted:
        query, document = pairs[owner]
        first = tokens.queries[query]
        if query_length < len(first):
            end = tokens.query_end[:query_length]
            first = np.concatenate((first[: query_length - len(end)], end))
        second = tokens.documents[document][start:stop]
        found.append(EncoderText(*template.join(first, second)))
    return found


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns two lengths that are at most `room` together, by shortening the longer one first."""
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half


Scores = NDArray[np.float32]

_MAX_TOKENS: Final = 2**24
"""The maximum number of tokens of all pairs of a request: the number that may wait for a model."""

_MAX_JOINED_CHARS: Final = 8 * _MAX_TOKENS
"""The maximum number of characters of all pairs of a request if each pair is one text."""

_PIECE_PAIRS: Final = 64
"""The number of pairs that are joined at once."""


class PairScores(NamedTuple):
    """The scores of pairs.

    Attributes:
        scores: f32 [pairs]. Rerankers: from 0 to 1, or logits if raw scores are requested.
            Embedding models: cosine similarities, from -1 to 1.
        num_tokens: the number of tokens of all pairs together.
    """

    scores: Scores
    num_tokens: int


async def score_pairs(
    call: EncodingCall,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
) -> PairScores:
    """Returns a score for each pair. Raises InvalidField if a text is invalid; BackendError if the
    pairs cannot be scored now."""
    model, client = call.model, call.client
    if model.task is Task.EMBEDDINGS:
        return await _cosine_scores(call, texts, pairs, options)
    template, config = model.texts.pair, model.config
    form = model.form
    is_written = form is not None and form.is_written(texts.queries)
    if is_written and (options.instruct is not None or options.max_document_tokens):
        name = "max_tokens_per_doc" if options.instruct is None else "instruct"
        raise InvalidField(f"{name} cannot be used with a query that is a whole prompt", param=name)
    if form is not None and not is_written:
        fixed = form.fixed_texts(options.instruct)
        encoded, owners = await _prompted(model, fixed, texts, pairs, options, client)
    elif template is None or model.joins_pairs:
        encoded = await _joined(model, texts, pairs, options, client, is_whole=is_written)
        owners = list(range(len(pairs)))
    else:
        first = instructed(texts.queries, config.query_instruction)
        second = instructed(texts.documents, config.document_instruction)
        given = RerankTexts(first, second)
        encoded, owners = await _paired(model, template, given, texts, pairs, options, client)
    rows = await call.encode(encoded)
    scores = np.full(len(pairs), -np.inf, np.float32)
    np.maximum.at(scores, owners, _relevance(rows, uses_activation=options.uses_activation))
    return PairScores(scores, _num_tokens(encoded))


def _relevance(logits: Scores, *, uses_activation: bool) -> Scores:
    """Returns one score for each row of one or two logits. With two logits, the second one is that
    of "yes"."""
    margin = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    if not uses_activation:
        return margin
    scores: Scores = (1 / (1 + np.exp(-margin.astype(np.float64)))).astype(np.float32)
    return scores


async def _cosine_scores(
    call: EncodingCall, texts: PairTexts, pairs: Sequence[Pair], options: PairOptions
) -> PairScores:
    """Returns the cosine similarity of the embeddings of each pair, for embedding models."""
    model, config = call.model, call.model.config
    usual = default_limit(model, truncates=options.truncates or options.chunks)
    limit = replace(usual, max_together=_MAX_TOKENS)
    found: list[TokenIds] = []
    for given, names, instruction, most in (
        (texts.queries, texts.query_names, config.query_instruction, limit),
        (
            texts.documents,
            texts.document_names,
            config.document_instruction,
            limit.at_most(options.max_document_tokens),
        ),
    ):
        whole = instructed(given, instruction)
        found += await tokenize(model, whole, names, most, call.client, encloses=True)
    encoded = [EncoderText(token_ids) for token_ids in found]
    rows = await call.encode(encoded)
    first = len(texts.queries)

    def compare() -> Scores:
        vectors = normalized(rows)
        positions = np.array(pairs) + np.array([0, first])
        return np.concatenate(
            [
                np.einsum("ij,ij->i", *np.moveaxis(vectors[piece], 1, 0))
                for piece in np.split(positions, range(_PIECE_PAIRS, len(pairs), _PIECE_PAIRS))
            ]
        )

    return PairScores(await offload.run(compare, rows.size), _num_tokens(encoded))


def _num_tokens(texts: Sequence[EncoderText]) -> int:
    return sum(len(text.token_ids) for text in texts)


async def _joined(
    model: ServedEncoder,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
    client: str,
    *,
    is_whole: bool,
) -> list[EncoderText]:
    """Returns each pair as one text: the query, then the document. `is_whole` is whether each query
    is already a complete prompt."""
    room = options.max_tokens - model.texts.num_added
    limit = TextLimit(room, options.truncates, max_together=_MAX_TOKENS)
    check_texts(model, texts.queries, texts.query_names, limit)
    check_texts(model, texts.documents, texts.document_names, limit)
    config = model.config
    before = "" if is_whole else config.query_instruction
    between = "" if is_whole else config.document_instruction
    joined: list[InputText] = [
        (before, texts.queries[query], between, texts.documents[document])
        for query, document in pairs
    ]
    # A query is tokenized once for each of its documents.
    if sum(map(num_units, joined)) > _MAX_JOINED_CHARS:
        raise InvalidField(
            f"the texts of all pairs must have at most {_MAX_JOINED_CHARS} characters together, "
            "where the query counts once for each document",
            param=texts.query_names[0],
        )
    names = [texts.document_names[document] for _, document in pairs]
    found = await tokenize(model, joined, names, limit, client, encloses=True)
    return [EncoderText(token_ids) for token_ids in found]


class RerankTexts(NamedTuple):
    """The queries and documents of a request as they are tokenized, with the spaces and the
    instruction before them."""

    queries: Sequence[InputText]
    documents: Sequence[InputText]


async def _prompted(
    model: ServedEncoder,
    fixed: FixedTexts,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
    client: str,
) -> tuple[list[EncoderText], list[int]]:
    """Returns the model inputs as `_paired` does, with each pair in the reranker's prompt format.
    Leading spaces of a text are tokenized with it, because they are part of its first token."""
    limit = TextLimit(options.max_tokens, options.truncates)
    check_texts(model, texts.queries, texts.query_names, limit)
    check_texts(model, texts.documents, texts.document_names, limit)
    before, between = fixed.before.rstrip(" "), fixed.between.rstrip(" ")
    space, gap = fixed.before[len(before) :], fixed.between[len(between) :]
    encode = partial(model.texts.encode, [before, fixed.after, between])
    head, tail, query_end = await model.tokenizing.run(client, encode)
    ids = [*head.tolist(), FIRST, SECOND, *tail.tolist()]
    given = RerankTexts(
        [(space, query, between) for query in texts.queries],
        [(gap, model.config.document_instruction, document) for document in texts.documents],
    )
    template = PairTemplate(ids, [0] * len(ids))
    return await _paired(model, template, given, texts, pairs, options, client, query_end)


_NO_TOKENS: Final = np.empty(0, np.int64)


async def _paired(
    model: ServedEncoder,
    template: PairTemplate,
    given: RerankTexts,
    texts: PairTexts,
    pairs: Sequence[Pair],
    options: PairOptions,
    client: str,
    query_end: TokenIds = _NO_TOKENS,
) -> tuple[list[EncoderText], list[int]]:
    """Returns the model inputs, joined in the tokenizer's format, and the index of the pair that
    each input belongs to. Long documents may be split into several inputs. For `query_end` see
    `PairTokens`."""
    room = options.max_tokens - template.num_added
    if room < 2:
        raise InvalidField(
            f"truncate_prompt_tokens must be more than {template.num_added + 1}, since special "
            "tokens surround each pair",
            param="truncate_prompt_tokens",
        )
    # The context limits each text, unless a document is divided into parts.
    whole = TextLimit(room, options.truncates or options.chunks, max_together=_MAX_TOKENS)
    long = whole
    if options.chunks:
        parts = options.max_chunks_per_document or options.max_chunks
        together = min(_MAX_TOKENS, room * options.max_chunks)
        long = replace(whole, max_tokens=room * parts, max_together=together)
    long = long.at_most(options.max_document_tokens)
    queries = await tokenize(model, given.queries, texts.query_names, whole, client)
    documents = await tokenize(model, given.documents, texts.document_names, long, client)
    tokens = PairTokens(queries, documents, query_end)
    fit = partial(fit_pairs, pairs, tokens, texts, options, room, model.info, _MAX_TOKENS)
    fitted: list[FittedPair] = fit() if len(pairs) == 1 else await model.tokenizing.run(client, fit)
    if len(fitted) * template.num_added > _MAX_TOKENS:
        raise together_exceeded(_MAX_TOKENS, "instruct" if options.instruct else "documents")
    found: list[EncoderText] = []
    for start in range(0, len(fitted), _PIECE_PAIRS):
        piece = fitted[start : start + _PIECE_PAIRS]
        join = partial(join_pairs, piece, pairs, tokens, template)
        found += join() if len(fitted) == 1 else await model.tokenizing.run(client, join)
    return found, [part.owner for part in fitted]


TASKS: Final = (Task.RERANK, Task.EMBEDDINGS)
"""The tasks of models that can score pairs."""


class RerankedDocument(AnswerSchema):
    """A document as the client sent it."""

    text: str


class RerankResult(AnswerSchema):
    """The index of a document in the request, and its relevance score."""

    index: int
    relevance_score: float
    document: RerankedDocument | UnsetType = UNSET


class ApiVersion(AnswerSchema):
    """The version of Cohere's API that a response follows."""

    version: str


class RerankedTokens(AnswerSchema):
    """The number of tokens of all pairs of a request."""

    input_tokens: int


class RerankMeta(AnswerSchema):
    """The `meta` object of Cohere's API, without billed units."""

    api_version: ApiVersion
    tokens: RerankedTokens


class RerankAnswer(AnswerSchema, kw_only=True):
    """The response of `/rerank`, best document first. Below `/v1` it has vLLM's members, at
    `/v2/rerank` also Cohere's `meta`."""

    id: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    usage: EncodingUsage | UnsetType = UNSET
    meta: RerankMeta | UnsetType = UNSET
    results: list[RerankResult]


async def answer_rerank(context: ApiContext, request: Request, dialect: Dialect) -> Response:
    """Answers `POST /rerank` for every dialect. Raises RequestError or BackendError if the request
    fails."""
    body, model = await read_encoding(context, request, RerankRequest, dialect, TASKS)
    texts = _texts(body, model.config.max_allowed_chunks)
    top_n = _top_n(body, len(texts.documents))
    options = read_pair_options(body, model, chunks=not dialect.has_ids)
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

    def write() -> bytes:
        answer = RerankAnswer(results=_results(found, texts, top_n, returns))
        if dialect.has_ids:
            answer.id, answer.model = name, model.info.name
            answer.usage = EncodingUsage(found.num_tokens, found.num_tokens)
        if dialect.has_meta:
            answer.meta = RerankMeta(ApiVersion("2"), RerankedTokens(found.num_tokens))
        return msgspec.json.encode(answer)

    cost = sum(map(len, texts.documents)) if returns else len(texts.documents)
    return Response(200, await offload.run(write, cost))


def _results(found: PairScores, texts: PairTexts, top_n: int, returns: bool) -> list[RerankResult]:
    return [
        RerankResult(
            index,
            float(found.scores[index]),
            RerankedDocument(texts.documents[index]) if returns else UNSET,
        )
        for index in np.argsort(-found.scores, kind="stable")[:top_n].tolist()
    ]


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
            raise wrong(name, "a string that is not empty", text)
        documents.append(text)
        names.append(name)
    return PairTexts([body.query], documents, ["query"], names)


def _top_n(body: RerankRequest, num_documents: int) -> int:
    """Returns the number of results to return; 0 or an absent field means all, as in vLLM."""
    given = body.top_n
    if given is not None and given < 0:
        raise wrong("top_n", "at least 0", given)
    return given or num_documents


_NAMES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""The allowed pairs of field names of the two sides."""


class Score(AnswerSchema, kw_only=True):
    """The score of one pair of texts."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(AnswerSchema, kw_only=True):
    """The response of `/score`."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: EncodingUsage


async def answer_score(context: ApiContext, request: Request, dialect: Dialect) -> Response:
    """Answers `POST /score` for every dialect. Raises RequestError or BackendError if the request
    fails."""
    body, model = await read_encoding(context, request, ScoreRequest, dialect, TASKS)
    texts, pairs = _read_pairs(body, model.config.max_inputs)
    options = read_pair_options(body, model, chunks=False)
    name = answer_id(body, "score-", context.new_id())
    call = encoding_call(
        context, request, model, GenerationKind.SCORE, body.model, response_id=name
    )
    found = await score_pairs(call, texts, pairs, options)
    return json_response(
        ScoreList(
            id=name,
            created=int(context.unix_time()),
            model=model.info.name,
            data=[Score(index=i, score=score) for i, score in enumerate(found.scores.tolist())],
            usage=EncodingUsage(found.num_tokens, found.num_tokens),
        )
    )


def _read_pairs(body: ScoreRequest, max_inputs: int) -> tuple[PairTexts, list[Pair]]:
    """Returns the texts of both sides, and the pairs of their indices. Raises InvalidField if a
    side is absent, empty or too long, or the lengths do not match."""
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
    """Returns the field names of the request's two sides."""
    given = [name for pair in _NAMES for name in pair if getattr(body, name) is not None]
    for pair in _NAMES:
        if set(given) == set(pair):
            return pair
    forms = ", ".join(f"{first} and {second}" for first, second in _NAMES)
    first = given[0] if given else "text_1"
    raise InvalidField(f"the texts must be two of these fields: {forms}", param=first)


def _side(body: ScoreRequest, name: str, max_inputs: int) -> tuple[list[str], list[str]]:
    """Returns the texts of one side, and their names in error messages."""
    given = getattr(body, name)
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise InvalidField(f"{name} must not be an empty list", param=name)
    if len(texts) > max_inputs:
        raise InvalidField(
            f"{name} must have at most {max_inputs} entries, not {len(texts)}", param=name
        )
    return texts, input_names(texts, name, is_list=isinstance(given, list))


_EMBEDDINGS: Final = Operation(
    "Makes vectors of texts, or of their tokens.",
    EmbeddingList,
    "Embeddings",
    body=EmbeddingRequest,
    examples="embeddings",
)
_RERANK: Final = Operation(
    "Sorts documents by how well they answer a query, in Cohere's format.",
    RerankAnswer,
    "Embeddings",
    body=RerankRequest,
    required=("query", "documents"),
    examples="rerank",
)
_SCORE: Final = Operation(
    "Scores how well texts go together, one with many or each with another, in vLLM's format.",
    ScoreList,
    "Embeddings",
    body=ScoreRequest,
    examples="score",
)


def endpoints(context: ApiContext) -> Iterator[Route]:
    """Yields the routes of embedding models and rerankers."""
    embeddings, rerank, score = (
        partial(endpoint, partial(answer, context))
        for answer in (answer_embeddings, answer_rerank, answer_score)
    )
    for dialect in DIALECTS:
        for prefix in dialect.prefixes:
            yield Route("POST", f"{prefix}/embeddings", embeddings(dialect), _EMBEDDINGS)
            yield Route("POST", f"{prefix}/rerank", rerank(dialect), _RERANK)
            yield Route("POST", f"{prefix}/score", score(dialect), _SCORE)
    yield Route("POST", "/rerank", rerank(OPENAI), _RERANK)  # vLLM has these paths too
    yield Route("POST", "/score", score(OPENAI), _SCORE)
    yield Route("POST", "/v2/rerank", rerank(COHERE), _RERANK)
