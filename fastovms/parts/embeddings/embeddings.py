"""Endpoint `/embeddings`: embedding vectors of texts and images."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType
from numpy import float32
from numpy.typing import NDArray

from fastovms.api import offload
from fastovms.api.body import wrong
from fastovms.api.chat_messages import read_messages
from fastovms.api.context import ApiContext
from fastovms.api.dialect import AnswerSchema, Dialect
from fastovms.api.endpoint import check_id
from fastovms.api.image_parts import ImageSource, check_tags, image_tag, images_of_request
from fastovms.api.prompt import check_num_chars, check_token_range, context_exceeded
from fastovms.api.request_schemas import ModelField, Priority, Truncation
from fastovms.api.typed_body import read_any_body
from fastovms.api.unread import Members, known
from fastovms.errors import InvalidField, RequestError
from fastovms.http.messages import Request, Response
from fastovms.params import ModelInfo, Task
from fastovms.parts.embeddings.encoder import EncodedTexts, EncoderText
from fastovms.parts.embeddings.picture_backend import MAX_RATIO
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.request_fields import ranges_of
from fastovms.telemetry.metrics import FinishedRequest
from fastovms.telemetry.tracing import (
    EncodingFormat,
    GenerationEnd,
    GenerationKind,
    GenerationSpan,
    GenerationStart,
    Phase,
)
from fastovms.text.detokenizer import slices
from fastovms.text.text_encoder import TokenIds


class EncodingFields(ModelField, frozen=True, kw_only=True):
    """The fields that all embedding and reranking endpoints have. None = absent."""

    truncate_prompt_tokens: Truncation = None
    truncation_side: str | None = None
    use_activation: bool | None = None
    priority: Priority = None
    request_id: str | None = None
    cache_salt: str | None = None
    user: str | None = None


class EmbeddingRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /embeddings`."""

    input: str | list[str | int | list[int]] | None = None
    messages: list[dict[str, Any]] | None = None
    continue_final_message: bool | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    add_special_tokens: bool | None = None
    embed_dtype: str | None = None
    endianness: str | None = None


class RerankRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /rerank`."""

    query: str | None = None
    documents: list[str | dict[str, Any]] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    instruct: str | None = None
    rank_fields: Any = None

    MEMBERS: ClassVar[Members] = Members({"documents": known("text")})


class ScoreRequest(EncodingFields, frozen=True, kw_only=True):
    """The body of `POST /score`. The two sides have one of four pairs of field names."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    instruct: str | None = None


_SIDES = (None, "left", "right")


def read_limit(body: EncodingFields, model: ServedEncoder, num_added: int) -> TextLimit:
    """Returns the limit on the length of a text. Raises InvalidField if a number is out of range or
    `truncation_side` is unknown. `num_added` is the number of special tokens around a text."""
    side = body.truncation_side
    if side not in _SIDES:
        raise wrong("truncation_side", '"left" or "right"', side)
    kept, longest = body.truncate_prompt_tokens, model.info.max_model_len
    if kept is None:
        return TextLimit(
            _room(longest, num_added, model.info), model.config.truncate, side == "left"
        )
    if kept != -1 and not 1 <= kept <= longest:
        words = f"-1 or from 1 to {longest}, the longest text of the model"
        raise wrong("truncate_prompt_tokens", words, kept)
    if kept == -1:
        kept = longest
    if kept <= num_added:
        words = f"more than {num_added}, the tokens that stand around each text"
        raise wrong("truncate_prompt_tokens", words, kept)
    return TextLimit(kept - num_added, truncates=True, keeps_end=side == "left")


def _room(longest: int, num_added: int, info: ModelInfo) -> int:
    """Returns the number of tokens that a text may have without special tokens. Raises InvalidField
    if there is no room."""
    if longest <= num_added:
        raise InvalidField(
            f"the context of the model {info.name} is too short for any text", param="model"
        )
    return longest - num_added


Body = TypeVar("Body", bound=EncodingFields)


async def read_encoding(
    context: ApiContext,
    request: Request,
    schema: type[Body],
    dialect: Dialect,
    tasks: Collection[Task],
) -> tuple[Body, ServedEncoder]:
    """Returns the decoded body of a request, and the model that it names.

    Raises:
        InvalidField: the priority is out of range.
        RequestError, BackendError: as in `read_any_body`.
    """
    body, model = await read_any_body(
        request, schema, context.models, dialect, context.bodies, tasks
    )
    assert isinstance(model, ServedEncoder)
    value, allowed = body.priority, ranges_of(EncodingFields, dialect.name)["priority"]
    if value is not None and value not in allowed:
        raise wrong("priority", f"{allowed}", value)
    return body, model


def answer_id(body: EncodingFields, prefix: str, new_id: str) -> str:
    """Returns the id of the response: the prefix, followed by the client's request id or else by
    `new_id`. Raises InvalidField if the client's id is invalid."""
    given = body.request_id
    return f"{prefix}{new_id if given is None else check_id(given, 'request_id')}"


class EncodingUsage(AnswerSchema):
    """The number of tokens of all texts of a request."""

    prompt_tokens: int
    total_tokens: int


BeginSpan = Callable[[], GenerationSpan | None]
"""Begins the trace span of a request; None = tracing is off."""


class EncodingCall:
    """The use of an embedding model or reranker by one request, from the moment the model is
    loaded.

    Attributes:
        client: the key or address of the sender; clients take turns.
    """

    def __init__(
        self,
        model: ServedEncoder,
        *,
        client: str,
        priority: int,
        log_fields: dict[str, object],
        charge: Callable[[int], None] = lambda num_tokens: None,
        begin_span: BeginSpan | None = None,
    ) -> None:
        """Args:
        priority: lower values are served first.
        log_fields: the access log's fields for the request.
        charge: counts tokens against the limits of the API key.
        """
        self._charge = charge
        self.model = model
        self.client = client
        self._priority = priority
        self._log_fields = log_fields
        self._begin_span = begin_span
        self._now = asyncio.get_running_loop().time
        self._started_at = self._now()

    async def encode(self, texts: Sequence[EncoderText]) -> NDArray[float32]:
        """Encodes the texts and returns f32 [texts, width]; see `ThreadedEncoder.encode`. Counts
        the request in the metrics, so call this method once. Raises BackendError if the texts
        cannot be encoded now."""
        num_tokens = sum(text.num_tokens for text in texts)
        self._log_fields["prompt_tokens"] = num_tokens
        self._charge(num_tokens)
        span = None if self._begin_span is None else self._begin_span()
        submitted_at = self._now()
        result: EncodedTexts | None = None
        reasons: list[str] = []
        failure: tuple[str, str] | None = None
        try:
            result = await self.model.backend.encode(texts, self.client, self._priority)
        except asyncio.CancelledError:
            reasons = ["abort"]
            raise
        except BaseException as error:
            failure = type(error).__name__, str(error)
            raise
        finally:
            if span is not None:
                phases = self._phases(submitted_at, result)
                span.end(GenerationEnd(reasons, num_tokens, None, None, phases, failure))
        self._note(result, num_tokens)
        return result.rows

    def _phases(self, submitted_at: float, result: EncodedTexts | None) -> list[Phase]:
        age = self._now() - submitted_at
        phases = [Phase("queue", age)]
        if result is not None:
            phases.append(Phase("prefill", age - result.queue_time))
        return phases

    def _note(self, result: EncodedTexts, num_tokens: int) -> None:
        self._log_fields["queue_ms"] = round(result.queue_time * 1000, 1)
        metrics, seconds = self.model.metrics, self._now() - self._started_at
        metrics.texts_encoded(result.queue_time, result.compute_time)
        metrics.request_finished(FinishedRequest(seconds, ("stop",), num_tokens, 0, 1, None))


def encoding_call(
    context: ApiContext,
    request: Request,
    model: ServedEncoder,
    kind: GenerationKind,
    asked_model: str | None,
    *,
    response_id: str = "",
    form: EncodingFormat | None = None,
) -> EncodingCall:
    """Returns the `EncodingCall` of a request, and makes its span the request's span.

    Args:
        asked_model: the model name in the request; None = not given.
        response_id: the id of the response; "" = the response has none.
        form: the encoding format of the vectors.
    """
    tracer = context.tracer

    def begin() -> GenerationSpan | None:
        start = GenerationStart(
            kind,
            age=asyncio.get_running_loop().time() - request.received_at,
            request_id=request.id,
            response_id=response_id,
            asked_model=asked_model or model.info.name,
            model=model.info.name,
            params=None,
            is_streamed=False,
            trace=request.trace,
            form=form,
        )
        assert tracer is not None
        span = tracer.begin(start)
        if span is not None:
            request.trace = span.context
        return span

    return EncodingCall(
        model,
        client=request.sender,
        priority=request.caller.priority or 0,
        log_fields=request.log_fields,
        charge=request.caller.charge,
        begin_span=None if tracer is None else begin,
    )


InputText = str | tuple[str, ...] | list[int]
"""One input: a text, parts of a text that are joined before tokenization, or token ids."""

_PIECE_CHARS: Final = 16_000
_PIECE_TEXTS: Final = 64
"""The maximum number of characters, and of texts, that are tokenized at once, which holds the GIL
for some milliseconds."""

_USUAL_CHARS_PER_TOKEN: Final = 8
"""The maximum characters per token in ordinary text. Of a longer text, only the beginning (or the
end, if that is kept) is tokenized at first; this usually shows whether the text is too long."""

_CUT: Final = 16
"""The maximum number of tokens into which a cut may split one token."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The maximum length of a text, and the treatment of longer texts.

    Attributes:
        max_tokens: the limit, without the tokenizer's special tokens.
        truncates: whether longer texts are truncated; otherwise they are refused.
        keeps_end: whether truncation keeps the end of a text.
        max_together: the limit for all texts of a request together; None = unlimited.
    """

    max_tokens: int
    truncates: bool = False
    keeps_end: bool = False
    max_together: int | None = None

    def at_most(self, max_tokens: int | None) -> TextLimit:
        """Returns a limit that truncates texts to `max_tokens`. If that is None or above this
        limit, returns this limit unchanged."""
        if max_tokens is None or max_tokens > self.max_tokens:
            return self
        return replace(self, max_tokens=max_tokens, truncates=True)

    def cut(self, token_ids: TokenIds) -> TokenIds:
        """Returns the tokens truncated to the limit."""
        if len(token_ids) <= self.max_tokens:
            return token_ids
        if self.keeps_end:
            return token_ids[len(token_ids) - self.max_tokens :]
        return token_ids[: self.max_tokens]

    @property
    def part_chars(self) -> int:
        """The number of characters of a long text that are tokenized first."""
        return (self.max_tokens + _CUT) * _USUAL_CHARS_PER_TOKEN

    def part(self, text: str) -> str:
        """Returns the part of a long text that is tokenized first."""
        return text[-self.part_chars :] if self.keeps_end else text[: self.part_chars]


async def tokenize(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    client: str,
    *,
    encloses: bool = False,
    num_images: int = 0,
) -> list[TokenIds]:
    """Returns the token ids of each text. Raises InvalidField if a text is empty, too long, invalid
    Unicode, or has ids outside the vocabulary, or if all texts together are too long; Overloaded if
    too many texts of the client wait.

    Args:
        names: the field of each text, for error messages.
        encloses: whether to add the tokenizer's special tokens. They are not added to token ids
            from clients.
        num_images: the number of images whose tags the text has; 0 if there are several texts.
    """
    check_texts(model, texts, names, limit, num_images)
    found: list[TokenIds] = []
    num_tokens = 0
    for piece in _pieces(texts):
        given, called = [texts[i] for i in piece], [names[i] for i in piece]
        num_chars = sum(map(num_units, given))
        if num_chars > _PIECE_CHARS and not isinstance(given[0], list):
            made = [await _long(model, _whole(given[0]), called[0], limit, client, encloses)]
        else:
            encode = partial(_encode, model, given, called, limit, encloses)
            if len(texts) == len(piece) and num_chars < offload.MUCH:
                made = encode()
            else:
                made = await model.tokenizing.run(client, encode)
        num_tokens += sum(map(len, made))
        if limit.max_together is not None and num_tokens > limit.max_together:
            raise together_exceeded(limit.max_together, called[-1])
        found += made
    return found


def check_texts(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    num_images: int = 0,
) -> None:
    """Raises InvalidField if a text is empty or too long for the limit with any tokenization, has
    image tags without images, or is token ids that are out of range or not supported."""
    for text, name in zip(texts, names, strict=True):
        if model.images is not None:
            if isinstance(text, list):
                raise InvalidField(
                    f"{name} must be a text for this model, which supports images, not token ids",
                    param=name,
                )
            check_tags(_whole(text), num_images, name, model.images.reserved)
        if isinstance(text, list):
            _check_ids(text, name, model, limit)
        elif limit.truncates:
            if not num_units(text):
                raise InvalidField(f"{name} must not be an empty string", param=name)
        else:
            check_num_chars(num_units(text), name, model.info)


def together_exceeded(max_tokens: int, name: str) -> InvalidField:
    """Returns the error for a request whose texts have too many tokens together. `name` is the
    field of the text that exceeds the limit."""
    return InvalidField(
        f"{name} is too much: all texts together must have at most {max_tokens} tokens",
        param=name,
    )


def num_units(text: InputText) -> int:
    """Returns the number of characters of a text, or the number of token ids."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def _whole(text: str | tuple[str, ...]) -> str:
    return "".join(text) if isinstance(text, tuple) else text


def _pieces(texts: Sequence[InputText]) -> Iterator[range]:
    """Yields the index ranges of texts that are tokenized together."""
    start = chars = 0
    for position, text in enumerate(texts):
        length = num_units(text)
        if position > start and (position - start == _PIECE_TEXTS or chars + length > _PIECE_CHARS):
            yield range(start, position)
            start, chars = position, 0
        chars += length
    yield range(start, len(texts))


async def _long(
    model: ServedEncoder, text: str, name: str, limit: TextLimit, client: str, encloses: bool
) -> TokenIds:
    """Returns the token ids of a long text. Tokenizes the text in slices, and stops when the limit
    is exceeded."""
    found: list[TokenIds] = []
    num_tokens = 0
    for part in slices(
        text,
        limit.part_chars,
        _PIECE_CHARS,
        from_end=limit.keeps_end,
        keeps_spaces=model.texts.keeps_spaces,
    ):
        token_ids = await model.tokenizing.run(client, partial(_encode_slice, model, part, name))
        found.append(token_ids)
        num_tokens += len(token_ids)
        if num_tokens > limit.max_tokens + _CUT:
            break
    if num_tokens > limit.max_tokens and not limit.truncates:
        raise context_exceeded(_excess(num_tokens, model, limit), model.info, name)

    def join() -> TokenIds:
        joined = limit.cut(np.concatenate(found[::-1] if limit.keeps_end else found))
        return model.texts.enclosed(joined) if encloses else joined

    joined: TokenIds = await model.tokenizing.run(client, join)
    return joined


def _encode_slice(model: ServedEncoder, text: str, name: str) -> TokenIds:
    try:
        [token_ids] = model.texts.encode([text])
    except RequestError:
        raise _named_fault([text], [name]) from None
    return token_ids


def _encode(
    model: ServedEncoder,
    texts: Sequence[InputText],
    names: Sequence[str],
    limit: TextLimit,
    encloses: bool,
) -> list[TokenIds]:
    wholes = [text if isinstance(text, list) else _whole(text) for text in texts]
    parts = [limit.part(text) for text in wholes if isinstance(text, str)]
    try:
        encoded = iter(model.texts.encode(parts) if parts else [])
    except RequestError:
        raise _named_fault(wholes, names) from None
    found: list[TokenIds] = []
    for text, name in zip(wholes, names, strict=True):
        if isinstance(text, list):
            found.append(limit.cut(np.array(text, np.int64)))
            continue
        token_ids = next(encoded)
        if len(token_ids) <= limit.max_tokens + _CUT and limit.part_chars < len(text):
            # Tokens of this text are longer than assumed: encode more of it.
            token_ids = _encode_slice(model, text, name)
        if len(token_ids) > limit.max_tokens and not limit.truncates:
            raise context_exceeded(_excess(len(token_ids), model, limit), model.info, name)
        token_ids = limit.cut(token_ids)
        found.append(model.texts.enclosed(token_ids) if encloses else token_ids)
    return found


def _excess(num_tokens: int, model: ServedEncoder, limit: TextLimit) -> str:
    around = model.info.max_model_len - limit.max_tokens
    return f"the text has {num_tokens} tokens or more, and {around} stand around it"


def _named_fault(texts: Sequence[str | list[int]], names: Sequence[str]) -> RequestError:
    """Returns the error for the first invalid text, with its field."""
    for text, name in zip(texts, names, strict=True):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                return InvalidField(
                    f"{name} has a lone surrogate, which is no character", param=name
                )
    raise AssertionError("a text has no tokens, but no fault")


def _check_ids(token_ids: list[int], name: str, model: ServedEncoder, limit: TextLimit) -> None:
    if not token_ids:
        raise InvalidField(f"{name} must not be an empty list", param=name)
    check_token_range(token_ids, name, model.info)
    if len(token_ids) > limit.max_tokens and not limit.truncates:
        raise context_exceeded(_excess(len(token_ids), model, limit), model.info, name)


_SMALLEST: Final = 1e-12
"""The minimum norm that a vector is divided by, to avoid division by zero."""

Vectors = NDArray[np.float32]


class EmbeddingOptions(NamedTuple):
    """The options for computing embeddings.

    Attributes:
        limit: the maximum length of a text, without special tokens.
        normalizes: whether vectors are scaled to length 1; None = the operator's setting.
        dimensions: the number of leading dimensions to keep; None = all.
        adds_special_tokens: whether special tokens are added to each text.
        instruction: a text that is prepended to each input.
    """

    limit: TextLimit
    normalizes: bool | None = None
    dimensions: int | None = None
    adds_special_tokens: bool = True
    instruction: str = ""


class Embeddings(NamedTuple):
    """The embeddings of texts.

    Attributes:
        vectors: f32 [texts, dimensions].
        num_tokens: the number of tokens of all texts.
    """

    vectors: Vectors
    num_tokens: int


def default_limit(model: ServedEncoder, *, truncates: bool | None = None) -> TextLimit:
    """Returns the maximum length of a text for requests that set no limit. `truncates` is whether
    longer texts are truncated; None = the operator's setting."""
    length = max(1, model.info.max_model_len - model.texts.num_added)
    return TextLimit(length, model.config.truncate if truncates is None else truncates)


async def embed(
    call: EncodingCall,
    texts: Sequence[InputText],
    names: Sequence[str],
    options: EmbeddingOptions,
) -> Embeddings:
    """Returns a vector for each of at least one text. Raises InvalidField if a text or the number
    of dimensions is invalid; BackendError if the texts cannot be encoded now. `names` are the
    fields of the texts, for error messages."""
    model = call.model
    _check_dimensions(model, options.dimensions)
    found = await tokenize(
        model,
        instructed(texts, options.instruction),
        names,
        options.limit,
        call.client,
        encloses=options.adds_special_tokens,
    )
    return await _vectors(call, [EncoderText(token_ids) for token_ids in found], options)


def _check_dimensions(model: ServedEncoder, dimensions: int | None) -> None:
    width = model.backend.encoder.width
    if dimensions is not None and not 1 <= dimensions <= width:
        raise InvalidField(
            f"dimensions must be from 1 to {width}, the dimensions of {model.info.name}, not "
            f"{dimensions}",
            param="dimensions",
        )


async def _vectors(
    call: EncodingCall, texts: Sequence[EncoderText], options: EmbeddingOptions
) -> Embeddings:
    rows = await call.encode(texts)
    if options.dimensions is not None:
        rows = rows[:, : options.dimensions]
    given, usual = options.normalizes, call.model.config.normalize
    if usual if given is None else given:
        rows = await offload.run(partial(normalized, rows), rows.size)
    return Embeddings(rows, sum(text.num_tokens for text in texts))


class ChatInput(NamedTuple):
    """A user message, possibly with images, to be embedded as one vector.

    Attributes:
        text: the text, with a tag for each image.
        instruction: what the vector is to represent; "" = the model's default.
    """

    text: str
    instruction: str
    images: Sequence[ImageSource]


def read_chat(body: EmbeddingRequest, model: ServedEncoder, dialect: Dialect) -> ChatInput:
    """Returns the input of a request with `messages`, in vLLM's format. Raises InvalidField if the
    model does not support images, or the messages are not one user message with an optional system
    message before it."""
    if model.images is None:
        raise InvalidField("messages is not supported by this model: send input", param="messages")
    if body.input is not None:
        raise InvalidField("messages cannot be sent together with input", param="messages")
    chat = read_messages(body.messages, dialect, images_of_request(model.images))
    messages = list(chat.messages)
    if messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages.pop()  # vLLM's clients append an empty message
    instruction = ""
    if messages and messages[0]["role"] in ("system", "developer"):
        instruction = messages.pop(0)["content"]
        check_tags(instruction, 0, "messages[0].content", model.images.reserved)
    if [message["role"] for message in messages] != ["user"]:
        raise InvalidField(
            "messages must be one user message, optionally preceded by one system message",
            param="messages",
        )
    return ChatInput(messages[0]["content"], instruction, chat.images)


_AROUND_IMAGE: Final = 2
"""The number of tokens around the tokens of an image."""


async def embed_chat(call: EncodingCall, chat: ChatInput, options: EmbeddingOptions) -> Embeddings:
    """Returns the vector of a message. Raises as `embed` does, and as `ImageInput.fetch` does if an
    image cannot be loaded."""
    model, num_images = call.model, len(chat.images)
    assert model.images is not None
    assert model.sizes is not None
    _check_dimensions(model, options.dimensions)
    limit = replace(options.limit, truncates=options.limit.truncates and not num_images)
    [found] = await tokenize(
        model, [chat.text], ["messages"], limit, call.client, num_images=num_images
    )
    num_tokens = 0
    if chat.instruction:
        [words] = await tokenize(
            model, [chat.instruction], ["messages[0].content"], limit, call.client
        )
        num_tokens = len(words)
    images = await model.images.fetch(chat.images) if num_images else []
    tags = model.texts.encode([image_tag(index) for index in range(num_images)]) if images else []
    for source, image, tag in zip(chat.images, images, tags, strict=True):
        num_image_tokens = model.sizes.num_tokens(image)
        if not num_image_tokens:
            raise InvalidField(
                f"{source.name} is too narrow: its sides may have a ratio of 1 to {MAX_RATIO}",
                param=source.name,
            )
        num_tokens += num_image_tokens + _AROUND_IMAGE - len(tag)
    text = EncoderText(found, None, images, chat.instruction, num_tokens)
    if text.num_tokens > model.info.max_model_len:
        excess = f"the messages have {text.num_tokens} tokens, with those of their images"
        raise context_exceeded(excess, model.info, "messages")
    return await _vectors(call, [text], options)


def instructed(texts: Sequence[InputText], instruction: str) -> Sequence[InputText]:
    """Returns the texts with the instruction prepended; token ids are returned unchanged."""
    if not instruction:
        return texts
    return [(instruction, text) if isinstance(text, str) else text for text in texts]


def normalized(rows: Vectors) -> Vectors:
    """Returns the rows scaled to length 1, f32 in the same shape."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    scaled: Vectors = rows / np.maximum(lengths, _SMALLEST)[:, None].astype(np.float32)
    return scaled


_FORMS: Final = (
    "input must be a string, a list of strings, a list of token ids or a list of such lists"
)
_CHOICES: Final = {
    "encoding_format": (None, "float", "base64"),
    "embed_dtype": (None, "float32"),
    "endianness": (None, "native", "little"),
}
"""The allowed values of fields that are names."""


class Embedding(AnswerSchema, kw_only=True):
    """The vector of one text: numbers, or base64 of the f32 bytes."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(AnswerSchema, kw_only=True):
    """The response of `/embeddings`; below `/v1` it has vLLM's members."""

    id: str | UnsetType = UNSET
    object: Literal["list"] = "list"
    created: int | UnsetType = UNSET
    model: str
    data: list[Embedding]
    usage: EncodingUsage


async def answer_embeddings(context: ApiContext, request: Request, dialect: Dialect) -> Response:
    """Answers `POST /embeddings` for every dialect. Raises RequestError or BackendError if the
    request fails."""
    body, model = await read_encoding(
        context, request, EmbeddingRequest, dialect, (Task.EMBEDDINGS,)
    )
    _check_choices(body)
    chat = None if body.messages is None else read_chat(body, model, dialect)
    texts = read_input(body, model.config.max_inputs) if chat is None else []
    adds = body.add_special_tokens is not False
    limit = read_limit(body, model, model.texts.num_added if adds else 0)
    name = answer_id(body, "embd-", context.new_id())
    options = EmbeddingOptions(
        limit,
        body.use_activation,
        body.dimensions,
        adds,
        model.config.document_instruction,
    )
    is_list = isinstance(body.input, list) and not isinstance(body.input[0], int)
    names = input_names(texts, "input", is_list=is_list)
    call = encoding_call(
        context,
        request,
        model,
        GenerationKind.EMBEDDINGS,
        body.model,
        response_id=name if dialect.has_ids else "",
        form=EncodingFormat(body.dimensions, body.encoding_format),
    )
    if chat is None:
        found = await embed(call, texts, names, options)
    else:
        found = await embed_chat(call, chat, options)
    is_base64 = body.encoding_format == "base64"

    def write() -> bytes:
        vectors = np.ascontiguousarray(found.vectors)
        answer = EmbeddingList(
            model=model.info.name,
            data=[
                Embedding(
                    index=index,
                    embedding=b64encode(vector.tobytes()).decode() if is_base64 else vector,
                )
                for index, vector in enumerate(vectors)
            ],
            usage=EncodingUsage(found.num_tokens, found.num_tokens),
        )
        if dialect.has_ids:
            answer.id, answer.created = name, int(context.unix_time())
        return encode_vectors(answer)

    return Response(200, await offload.run(write, found.vectors.size))


def encode_vectors(answer: AnswerSchema) -> bytes:
    """Returns the JSON of a response with NumPy vectors. Vectors are written one at a time, to let
    other threads have the GIL in between."""
    return msgspec.json.encode(answer, enc_hook=_vector_json)


def _vector_json(vector: Vectors) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY))


def read_input(body: EmbeddingRequest, max_inputs: int) -> Sequence[InputText]:
    """Returns the inputs of a request. Raises InvalidField if the input is missing, has too many
    entries, or mixes texts and token ids."""
    given = body.input
    if given is None:
        raise InvalidField("input is required", param="input")
    if isinstance(given, str):
        return [given]
    forms = set(map(type, given))
    if forms == {int}:
        return [given]  # type: ignore[list-item]
    if len(forms) != 1:
        reason = "input must not be an empty list" if not forms else f"{_FORMS}, not a mixture"
        raise InvalidField(reason, param="input")
    if len(given) > max_inputs:
        raise InvalidField(
            f"input must have at most {max_inputs} entries, not {len(given)}", param="input"
        )
    return given  # type: ignore[return-value]


def input_names(texts: Sequence[object], name: str, *, is_list: bool) -> list[str]:
    """Returns the name of each text in error messages: the field, with an index if it is a list."""
    return [f"{name}[{position}]" for position in range(len(texts))] if is_list else [name]


def _check_choices(body: EmbeddingRequest) -> None:
    for name, allowed in _CHOICES.items():
        value = getattr(body, name)
        if value not in allowed:
            words = " or ".join(f'"{each}"' for each in allowed if each is not None)
            raise wrong(name, words, value)
