"""Lists what the routes of Ollama's API do, take and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastovms.api.embeddings.ollama_embed import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from fastovms.api.ollama.ollama_schema import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaNamed,
)
from fastovms.api.openapi.operation import Operation
from fastovms.api.openapi.schemas.ollama_schemas import (
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaModelCard,
    OllamaModelList,
    OllamaStatus,
    OllamaVector,
    OllamaVectors,
    OllamaVersion,
)

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
