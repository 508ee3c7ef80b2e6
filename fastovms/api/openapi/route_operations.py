"""Lists what each route does, takes and answers, for the documentation; a test compares it with the
routes.

A route that every dialect has stands here by its path behind the dialect's prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from fastovms.api.embeddings.embedding_schemas import (
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
)
from fastovms.api.messages.messages_schema import CountTokensRequest, MessagesRequest
from fastovms.api.openapi import examples
from fastovms.api.openapi.batch_operations import BATCH_OPERATIONS
from fastovms.api.openapi.ollama_operations import OLLAMA_OPERATIONS
from fastovms.api.openapi.operation import Nothing, Operation
from fastovms.api.openapi.schemas.admin_schemas import (
    CancelledWork,
    DetokenizedText,
    ModelCard,
    ModelList,
    ModelMetadata,
    OvmsTokens,
    ServerConfigStatus,
    ServerMetadata,
    Tokens,
    VersionAnswer,
    WorkList,
)
from fastovms.api.openapi.schemas.encoding_schemas import EmbeddingList, RerankAnswer, ScoreList
from fastovms.api.openapi.schemas.generation_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from fastovms.api.openapi.schemas.messages_schemas import (
    MESSAGE_EVENT,
    CountedTokens,
    MessageAnswer,
)
from fastovms.api.openapi.schemas.responses_schemas import (
    RESPONSE_EVENT,
    CompactedResponse,
    ConversationItem,
    ConversationList,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseObject,
)
from fastovms.api.responses.input.responses_schema import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
    ResponsesRequest,
)
from fastovms.api.tokens.ovms_tokenize import OvmsTokenizeRequest
from fastovms.api.tokens.tokenize import DetokenizeRequest, TokenizeRequest
from fastovms.api.wire.bodies.request_schemas import ChatRequest, CompletionRequest
from fastovms.api.wire.dialect import DIALECTS

_PAGE: Final[Mapping[str, Any]] = {
    "limit": int,
    "order": Literal["asc", "desc"],
    "after": str,
}
_INFER: Final = Operation("Refuses tensors, which a language model does not take.", body=dict)
_CONVERSATION: Final = Operation(
    "Returns a conversation, without its items.",
    ConversationObject,
    answered=examples.CONVERSATION,
)
_OVMS_TOKENIZE: Final = Operation(
    "Returns the token ids of one or several texts, in OVMS's form.",
    OvmsTokens,
    body=OvmsTokenizeRequest,
    required=("text",),
    examples={"A text": {"text": "Once upon a time"}},
    answered={"tokens": [1, 403, 378]},
)
_RERANK: Final = Operation(
    "Sorts documents by how well they answer a query, in Cohere's form.",
    RerankAnswer,
    body=RerankRequest,
    required=("query", "documents"),
    examples={"Two documents": {"query": "hello", "documents": ["welcome", "farewell"]}},
)
_SCORE: Final = Operation(
    "Scores how well texts go together, one with many or each with another, in vLLM's form.",
    ScoreList,
    body=ScoreRequest,
    examples={"One with two": {"text_1": "hello", "text_2": ["welcome", "farewell"]}},
)
_PROBE: Final = Operation("Answers as `/health` does.", Nothing)
_READY: Final = (
    "Answers 200 when the model can be asked, 503 when it is not in memory or has failed."
)

OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "Text generation": {
        "POST /completions": Operation(
            "Continues one or many prompts, given as text or as token ids, whole or as a stream; "
            "takes every field of OpenAI, vLLM and OVMS.",
            Completion,
            body=CompletionRequest,
            required=("prompt",),
            events=CompletionChunk,
            examples=examples.COMPLETIONS,
            answered=examples.COMPLETION,
        ),
        "POST /chat/completions": Operation(
            "Answers messages through the model's template, whole or as a stream; with tools, "
            "reasoning and structured answers.",
            ChatCompletion,
            body=ChatRequest,
            required=("messages",),
            events=ChatCompletionChunk,
            examples=examples.CHATS,
            answered=examples.CHAT_COMPLETION,
        ),
    },
    "Messages": {
        "POST /v1/messages": Operation(
            "Answers messages in Anthropic's form, whole or as a stream; with tools, thinking and "
            "structured answers.",
            MessageAnswer,
            body=MessagesRequest,
            required=("messages", "max_tokens"),
            events=MESSAGE_EVENT,
            examples=examples.MESSAGES,
            answered=examples.MESSAGE,
        ),
        "POST /v1/messages/count_tokens": Operation(
            "Counts the tokens that the request's prompt would have.",
            CountedTokens,
            body=CountTokensRequest,
            required=("messages",),
            examples={"A question": {"messages": [examples.USER]}},
            answered={"input_tokens": 17},
        ),
    },
    "Responses": {
        "POST /responses": Operation(
            "Makes a response of text, reasoning and calls as items: whole, as a stream or in the "
            "background.",
            ResponseObject,
            body=ResponsesRequest,
            events=RESPONSE_EVENT,
            examples=examples.RESPONSES,
            answered=examples.RESPONSE,
        ),
        "POST /responses/input_tokens": Operation(
            "Counts the tokens that the request's prompt would have.",
            InputTokens,
            body=ResponsesRequest,
            examples={"A question": {"input": "What is the capital of France?"}},
            answered={"object": "response.input_tokens", "input_tokens": 17},
        ),
        "POST /responses/compact": Operation(
            "Has the model summarize a conversation, and returns the newest messages to it with "
            "the summary, as the input of what follows.",
            CompactedResponse,
            body=ResponsesRequest,
            examples={"A question": {"input": "What is the capital of France?"}},
        ),
        "GET /responses/{id}": Operation(
            "Returns a stored response; `?stream=true` follows one that runs in the background, "
            "`&starting_after=N` from any event.",
            ResponseObject,
            events=RESPONSE_EVENT,
            query={"stream": bool, "starting_after": int},
        ),
        "DELETE /responses/{id}": Operation(
            "Deletes a stored response, and cancels it first if it runs.", DeletedResponse
        ),
        "POST /responses/{id}/cancel": Operation(
            "Cancels a response that runs in the background.", ResponseObject
        ),
        "GET /responses/{id}/input_items": Operation(
            "Lists the input of a stored response.", ItemList, query=_PAGE
        ),
    },
    "Conversations": {
        "POST /conversations": Operation(
            "Makes a conversation, with its first items if some are given.",
            ConversationObject,
            body=ConversationRequest,
            examples={"With a first item": {"items": [examples.ITEM], "metadata": {"topic": "a"}}},
            answered=examples.CONVERSATION,
        ),
        "GET /conversations": Operation(
            "Lists the conversations, the newest first.", ConversationList, query=_PAGE
        ),
        "GET /conversations/{id}": _CONVERSATION,
        "POST /conversations/{id}": Operation(
            "Changes the metadata of a conversation.",
            ConversationObject,
            body=ConversationUpdate,
            required=("metadata",),
            examples={"A topic": {"metadata": {"topic": "a"}}},
        ),
        "DELETE /conversations/{id}": Operation("Deletes a conversation.", DeletedConversation),
        "GET /conversations/{id}/items": Operation(
            "Lists the items of a conversation.", ItemList, query=_PAGE
        ),
        "POST /conversations/{id}/items": Operation(
            "Adds items to a conversation.",
            ItemList,
            body=ItemsRequest,
            required=("items",),
            examples={"A message": {"items": [examples.ITEM]}},
        ),
        "GET /conversations/{id}/items/{item_id}": Operation(
            "Returns one item of a conversation.", ConversationItem
        ),
        "DELETE /conversations/{id}/items/{item_id}": Operation(
            "Deletes one item of a conversation.", ConversationObject
        ),
    },
    "Embeddings": {
        "POST /embeddings": Operation(
            "Makes vectors of texts, or of their tokens.",
            EmbeddingList,
            body=EmbeddingRequest,
            required=("input",),
            examples={"Two texts": {"input": ["Once upon a time", "The end"]}},
        ),
        "POST /rerank": _RERANK,
        "POST /v1/rerank": _RERANK,
        "POST /v2/rerank": _RERANK,
        "POST /score": _SCORE,
        "POST /v1/score": _SCORE,
    },
    **BATCH_OPERATIONS,
    "Tokens": {
        "POST /tokenize": Operation(
            "Returns the token ids of a prompt or of messages, in vLLM's form.",
            Tokens,
            body=TokenizeRequest,
            examples={"A text": {"prompt": "Once upon a time"}},
            answered={
                "count": 3,
                "max_model_len": 1024,
                "tokens": [1, 403, 378],
                "token_strs": None,
            },
        ),
        "POST /v3/tokenize": _OVMS_TOKENIZE,
        "POST /v3/v1/tokenize": _OVMS_TOKENIZE,
        "POST /detokenize": Operation(
            "Returns the text of token ids, in vLLM's form.",
            DetokenizedText,
            body=DetokenizeRequest,
            required=("tokens",),
            examples={"Some tokens": {"tokens": [5, 6, 7]}},
            answered={"prompt": "Once upon a time"},
        ),
    },
    "Models": {
        "GET /models": Operation(
            "Lists the models, below `/v1` with their `max_model_len`.",
            ModelList,
            answered=examples.MODEL_LIST,
        ),
        "GET /models/{id}": Operation("Describes one model as the list does.", ModelCard),
        "POST /models/{id}/load": Operation(
            "Loads a model, for operators, and answers when it is in memory.", ModelCard
        ),
        "POST /models/{id}/unload": Operation(
            "Unloads a model when the requests on it have ended, for operators.", ModelCard
        ),
        "GET /v1/config": Operation(
            "Returns the status of every model, as OVMS does.", ServerConfigStatus
        ),
        "POST /v1/config/reload": Operation(
            "Reads the list of models of `--config-path` again, and returns the same status: 201 "
            "where something has changed, 412 where the list or a model is at fault. It is for "
            "operators.",
            ServerConfigStatus,
        ),
        "GET /v1/work": Operation(
            "Lists, for operators, the requests, background responses and batches of all API keys "
            "that have not ended. `kind` and `key` in the query narrow the list.",
            WorkList,
            query={
                "kind": Literal["request", "response", "batch"],
                "key": str,
                "limit": int,
                "order": Literal["asc", "desc"],
                "after": str,
            },
        ),
        "POST /v1/work/{id}/cancel": Operation(
            "Cancels, for operators, a request, a background response or a batch of any API key.",
            CancelledWork,
            query={"kind": Literal["request", "response", "batch"], "key": str},
        ),
        "GET /v2/models/{name}": Operation("Returns KServe's metadata of a model.", ModelMetadata),
        "GET /v2/models/{name}/versions/{version}": Operation(
            "Returns the same; the only version is 1.", ModelMetadata
        ),
        "GET /v2/models/{name}/ready": Operation(_READY, Nothing),
        "GET /v2/models/{name}/versions/{version}/ready": Operation(
            "Answers the same; the only version is 1.", Nothing
        ),
        "POST /v2/models/{name}/infer": _INFER,
        "POST /v2/models/{name}/versions/{version}/infer": Operation(
            "Refuses tensors, too.", body=dict
        ),
    },
    "Ollama": OLLAMA_OPERATIONS,
    "Health and monitoring": {
        "GET /health": Operation(
            "Answers 200, or 503 while models load and after an engine has failed.", Nothing
        ),
        "GET /ping": _PROBE,
        "POST /ping": _PROBE,
        "GET /ready": Operation(
            "Answers as `/health` does, and 503 too once the server is about to shut down.", Nothing
        ),
        "GET /v2/health/ready": Operation("Answers as `/ready` does.", Nothing),
        "GET /v2/health/live": Operation(
            "Answers 200 for as long as the process answers at all.", Nothing
        ),
        "GET /version": Operation("Returns the version of the server.", VersionAnswer),
        "GET /v2": Operation(
            "Returns the server's name and version in KServe's form.", ServerMetadata
        ),
        "GET /metrics": Operation(
            "Returns Prometheus metrics: all, or those that `name[]` names.",
            str,
            media_type="text/plain",
            query={"name[]": list[str]},
        ),
    },
    "Documentation": {
        "GET /openapi.json": Operation("Returns this description, as OpenAPI 3.1.", dict),
        "GET /docs": Operation(
            "Shows it to people, without a network.", str, media_type="text/html"
        ),
    },
    "The page": {
        "GET /": Operation(
            "Answers with a page that chats and shows the engine live.", str, media_type="text/html"
        ),
        "GET /ui/{version}/{name}": Operation(
            "Answers with a file of that page: a module, a style, a picture.",
            str,
            media_type="text/javascript",
        ),
    },
}
"""Method and path of each route, by the sections of the page."""


def operation_name(method: str, pattern: str) -> tuple[str, str]:
    """Returns by which name `OPERATIONS` has a route of the router, and which prefix of a dialect
    that name is without."""
    path = pattern.replace(":path}", "}")
    name = f"{method} {path}"
    if any(name in operations for operations in OPERATIONS.values()):
        return name, ""
    for prefix in _PREFIXES:
        if path.startswith(f"{prefix}/"):
            return f"{method} {path.removeprefix(prefix)}", prefix
    return name, ""


_PREFIXES: Final = sorted(
    (prefix for dialect in DIALECTS for prefix in dialect.prefixes), key=len, reverse=True
)
