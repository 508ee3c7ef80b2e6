"""Describes every operation of the API with its summary and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from fastovms.api.admin import (
    CancelledWork,
    ModelCard,
    ModelList,
    ModelMetadata,
    ServerConfigStatus,
    ServerMetadata,
    VersionAnswer,
    WorkList,
)
from fastovms.api.audio import (
    TranscriptEvent,
    TranscriptionForm,
    TranscriptObject,
    TranslationForm,
)
from fastovms.api.chat import ChatCompletion, ChatCompletionChunk
from fastovms.api.completions import Completion, CompletionChunk
from fastovms.api.dialect import DIALECTS
from fastovms.api.embeddings import (
    EmbeddingList,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
)
from fastovms.api.endpoint import Nothing, Operation
from fastovms.api.request_schemas import ChatRequest, CompletionRequest
from fastovms.api.rerank import RerankAnswer, ScoreList
from fastovms.api.tokenize import (
    DetokenizedText,
    DetokenizeRequest,
    OvmsTokenizeRequest,
    OvmsTokens,
    TokenizeRequest,
    Tokens,
)
from fastovms.parts.adapters.endpoints import LoadAdapterRequest, UnloadAdapterRequest
from fastovms.parts.batches.endpoints import BatchList, BatchObject, BatchRequest
from fastovms.parts.batches.files import DeletedFile, FileForm, FileList, FileObject
from fastovms.parts.decisions import (
    Decision,
    DecisionsRequest,
)
from fastovms.parts.messages.endpoints import MESSAGE_EVENT, CountedTokens, MessageAnswer
from fastovms.parts.messages.request import CountTokensRequest, MessagesRequest
from fastovms.parts.ollama.models import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaModelCard,
    OllamaModelList,
    OllamaStatus,
    OllamaVector,
    OllamaVectors,
    OllamaVersion,
)
from fastovms.parts.ollama.request import OllamaChatRequest, OllamaGenerateRequest, OllamaNamed
from fastovms.parts.openapi import examples
from fastovms.parts.openapi.schemas import (
    RESPONSE_EVENT,
    CompactedResponse,
    ConversationItem,
    ItemList,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    ResponseObject,
)
from fastovms.parts.responses.conversations import (
    ConversationList,
    ConversationObject,
    DeletedConversation,
    DeletedResponse,
)
from fastovms.parts.responses.create import InputTokens
from fastovms.parts.responses.request import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
    ResponsesRequest,
)

_PAGE: Final[Mapping[str, Any]] = {
    "limit": int,
    "order": Literal["asc", "desc"],
    "after": str,
}

BATCH_OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "Files": {
        "POST /files": Operation(
            "Takes a file, which is written to the disk as it comes: `file`, `purpose`, and "
            "`expires_after[anchor]` and `expires_after[seconds]` if it is to expire.",
            FileObject,
            body=FileForm,
            body_type="multipart/form-data",
        ),
        "GET /files": Operation(
            "Lists the files, the newest first.", FileList, query={**_PAGE, "purpose": str}
        ),
        "GET /files/{id}": Operation("Describes a file.", FileObject),
        "DELETE /files/{id}": Operation(
            "Deletes a file, unless a batch that has not ended reads it.", DeletedFile
        ),
        "GET /files/{id}/content": Operation(
            "Returns the content of a file, or the `Range` of it.",
            str,
            media_type="application/octet-stream",
        ),
    },
    "Batches": {
        "POST /batches": Operation(
            "Runs the requests in a file of JSON lines, behind all others, and leaves the answers "
            "in another one.",
            BatchObject,
            body=BatchRequest,
            required=("input_file_id", "endpoint", "completion_window"),
            examples={
                "Chats": {
                    "input_file_id": "file-0123456789abcdef0123456789abcdef",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                }
            },
        ),
        "GET /batches": Operation("Lists the batches, the newest first.", BatchList, query=_PAGE),
        "GET /batches/{id}": Operation("Tells how far a batch has come.", BatchObject),
        "POST /batches/{id}/cancel": Operation(
            "Has a batch end with what is done by then.", BatchObject
        ),
    },
}
"""Method and path of each route, by the sections of the page."""


_TIME: Final = "2026-01-01T00:00:00.000000Z"
_USER: Final = {"role": "user", "content": "What is the capital of France?"}
_FEW: Final = {"num_predict": 10, "temperature": 0}
_ENDED: Final[Mapping[str, Any]] = {
    "model": "qwen3",
    "created_at": _TIME,
    "done": True,
    "done_reason": "stop",
    "total_duration": 65000000,
    "load_duration": 0,
    "prompt_eval_count": 18,
    "prompt_eval_duration": 46290902,
    "eval_count": 14,
    "eval_duration": 8652559,
}
_DETAILS: Final = {
    "parent_model": "",
    "format": "openvino",
    "family": "qwen3",
    "families": ["qwen3"],
    "parameter_size": "",
    "quantization_level": "",
}

OLLAMA_OPERATIONS: Final[Mapping[str, Operation]] = {
    "POST /api/chat": Operation(
        "Answers messages as Ollama does: as lines of JSON, or whole where `stream` is false.",
        OllamaChatAnswer,
        body=OllamaChatRequest,
        lines=OllamaChatAnswer,
        examples={
            "A question": {"messages": [_USER], "stream": False, "options": _FEW},
            "A stream": {"messages": [_USER], "options": _FEW},
        },
        answered={
            **_ENDED,
            "message": {"role": "assistant", "content": "The capital of France is Paris."},
        },
    ),
    "POST /api/generate": Operation(
        "Answers a prompt as Ollama does, or continues it where `raw` is true.",
        OllamaGenerateAnswer,
        body=OllamaGenerateRequest,
        lines=OllamaGenerateAnswer,
        examples={
            "A question": {"prompt": "What is 1 + 1?", "stream": False, "options": _FEW},
            "A text to continue": {"prompt": "Once", "raw": True, "options": _FEW},
        },
        answered={**_ENDED, "response": "2", "context": [1, 316, 209]},
    ),
    "POST /api/embed": Operation(
        "Returns a vector for each text, as Ollama does.", OllamaVectors, body=OllamaEmbedRequest
    ),
    "POST /api/embeddings": Operation(
        "Returns the vector of one prompt, for older clients of Ollama.",
        OllamaVector,
        body=OllamaEmbeddingsRequest,
    ),
    "GET /api/tags": Operation(
        "Lists the models, under all of their names.",
        OllamaModelList,
        answered={
            "models": [
                {
                    "name": "qwen3",
                    "model": "qwen3",
                    "modified_at": _TIME,
                    "size": 1200000000,
                    "digest": "394bae754f45ea10a380ee9ec602294536a9d76dbbd16d6519429bb8ae0471d9",
                    "details": _DETAILS,
                }
            ]
        },
    ),
    "GET /api/ps": Operation("Lists the models in memory.", OllamaModelList),
    "POST /api/show": Operation(
        "Describes one model: its template, its context and what it can do.",
        OllamaModelCard,
        body=OllamaNamed,
        examples={"A model": {}},
        answered={
            "modelfile": "FROM qwen3\n",
            "parameters": "temperature                    0.6",
            "template": "{%- for message in messages %}...",
            "details": _DETAILS,
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
            "capabilities": ["completion", "tools", "thinking"],
            "modified_at": _TIME,
        },
    ),
    "GET /api/version": Operation(
        "Returns the version of Ollama whose API this is.",
        OllamaVersion,
        answered={"version": "0.12.11"},
    ),
    "POST /api/pull": Operation(
        "Says of a model that is served that it is there: none is fetched.",
        OllamaStatus,
        body=OllamaNamed,
        lines=OllamaStatus,
        examples={"A model": {"stream": False}},
        answered={"status": "success"},
    ),
    "POST /api/push": Operation("Refuses to send models elsewhere."),
    "POST /api/create": Operation("Refuses to make models."),
    "POST /api/copy": Operation("Refuses to copy models."),
    "DELETE /api/delete": Operation("Refuses to delete models."),
    "POST /api/blobs/{digest}": Operation("Refuses files of models."),
}
"""Method and path of each route."""


# Lists what each route does, takes and answers, for the documentation; a test compares it with
# the routes.
#
# A route that every dialect has stands here by its path behind the dialect's prefix.


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
_AUDIO: Final = Operation(
    "Transcribes speech.",
    TranscriptObject,
    body_type="multipart/form-data",
    required=("file",),
    events=TranscriptEvent,
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
        "GET /responses": Operation(
            "Opens a WebSocket connection on which messages create responses. Without one it is "
            "refused.",
            upgrades=True,
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
    "Audio": {
        "POST /audio/transcriptions": replace(_AUDIO, body=TranscriptionForm),
        "POST /audio/translations": replace(
            _AUDIO,
            summary="Transcribes speech and translates it to English.",
            body=TranslationForm,
        ),
    },
    "Decisions": {
        "POST /decisions": Operation(
            "Answers typed questions about an input with probabilities, in OpenAI's form.",
            Decision,
            body=DecisionsRequest,
            required=("input", "questions"),
            examples={
                "A predicate and a choice": {
                    "input": "My card was charged twice for one order.",
                    "questions": [
                        {"type": "predicate", "instructions": "The customer is angry."},
                        {
                            "type": "choice",
                            "name": "team",
                            "instructions": "Which team should handle this?",
                            "choices": [{"value": "billing"}, {"value": "shipping"}],
                        },
                    ],
                }
            },
        ),
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
        "POST /v1/load_lora_adapter": Operation(
            "Loads an adapter (LoRA), for operators, and answers when requests may name it.",
            str,
            media_type="text/plain",
            body=LoadAdapterRequest,
            required=("lora_name", "lora_path"),
        ),
        "POST /v1/unload_lora_adapter": Operation(
            "Unloads an adapter when the requests with it have ended, for operators.",
            str,
            media_type="text/plain",
            body=UnloadAdapterRequest,
            required=("lora_name",),
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
    """Returns the key of a route in `OPERATIONS`, and the dialect prefix that was removed from its
    path."""
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
