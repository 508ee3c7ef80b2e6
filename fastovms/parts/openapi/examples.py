"""Examples of requests and responses. A test sends the requests and validates the responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Requests = Mapping[str, Mapping[str, Any]]
Answer = Mapping[str, Any]

_QUESTION: Final = "What is the capital of France?"
_ANSWER: Final = "The capital of France is Paris."
_WEATHER: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
_CAPITAL: Final = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
    "required": ["country", "capital"],
}
_USER: Final = {"role": "user", "content": _QUESTION}
_MODEL: Final = "qwen3"
_CREATED: Final = 1767225600
_FINGERPRINT: Final = "fastovms-0.2.0"

_COMPLETIONS: Final[Requests] = {
    "A prompt": {"prompt": "Once upon a time", "max_tokens": 20},
    "Several prompts": {"prompt": ["Once upon", "Long ago"], "max_tokens": 5, "temperature": 0},
    "A stream": {"prompt": "Once upon a time", "max_tokens": 5, "stream": True,
                 "stream_options": {"include_usage": True}},
}  # fmt: skip

_CHATS: Final[Requests] = {
    "A question": {"messages": [_USER], "max_tokens": 20, "temperature": 0},
    "A stream": {"messages": [_USER], "max_tokens": 10, "stream": True},
    "A tool": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Returns the weather of a city.",
                    "parameters": _WEATHER,
                },
            }
        ],
        "max_tokens": 50,
    },
    "A structured answer": {
        "messages": [_USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "capital", "schema": _CAPITAL},
        },
        "max_tokens": 50,
    },
}

_MESSAGES: Final[Requests] = {
    "A question": {"messages": [_USER], "max_tokens": 20, "temperature": 0},
    "A stream": {"messages": [_USER], "max_tokens": 10, "stream": True},
    "A tool": {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "name": "get_weather",
                "description": "Returns the weather of a city.",
                "input_schema": _WEATHER,
            }
        ],
        "max_tokens": 50,
    },
    "A structured answer": {
        "messages": [_USER],
        "output_config": {"format": {"type": "json_schema", "schema": _CAPITAL}},
        "max_tokens": 50,
    },
}

_MESSAGE: Final[Answer] = {
    "id": "msg_0e8b7f6c5d4a39281706f5e4d3c2b1a0",
    "type": "message",
    "role": "assistant",
    "model": _MODEL,
    "content": [{"type": "text", "text": _ANSWER, "citations": None}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "stop_details": None,
    "container": None,
    "usage": {
        "input_tokens": 17,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 8,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": None,
        "cache_creation": None,
        "inference_geo": None,
        "service_tier": "standard",
    },
}

_RESPONSES: Final[Requests] = {
    "A question": {"input": _QUESTION, "max_output_tokens": 20},
    "A stream": {"input": _QUESTION, "max_output_tokens": 10, "stream": True},
    "A tool": {
        "input": "What is the weather in Paris?",
        "tools": [{"type": "function", "name": "get_weather", "parameters": _WEATHER}],
        "max_output_tokens": 50,
    },
    "Items": {
        "instructions": "Answer in one sentence.",
        "input": [{"type": "message", "role": "user",
                   "content": [{"type": "input_text", "text": _QUESTION}]}],
        "max_output_tokens": 20,
        "store": False,
    },
}  # fmt: skip

_ITEM: Final = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": _QUESTION}],
}

_USAGE: Final = {
    "prompt_tokens": 17,
    "completion_tokens": 8,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 0},
}

_COMPLETION: Final[Answer] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": _CREATED,
    "model": _MODEL,
    "system_fingerprint": _FINGERPRINT,
    "choices": [
        {
            "index": 0,
            "text": ", there was a fox.",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": _USAGE,
}

_CHAT_COMPLETION: Final[Answer] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": _CREATED,
    "model": _MODEL,
    "system_fingerprint": _FINGERPRINT,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": _ANSWER, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": _USAGE,
}

_RESPONSE: Final[Answer] = {
    "id": "resp_1",
    "object": "response",
    "created_at": _CREATED,
    "model": _MODEL,
    "status": "completed",
    "completed_at": _CREATED + 1,
    "error": None,
    "incomplete_details": None,
    "usage": {
        "input_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25,
    },
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": _ANSWER, "annotations": [], "logprobs": []}
            ],
        }
    ],
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": 20,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}

_CONVERSATION: Final[Answer] = {
    "id": "conv_1",
    "object": "conversation",
    "created_at": _CREATED,
    "metadata": {"topic": "a"},
}

_MODEL_LIST: Final[Answer] = {
    "object": "list",
    "data": [
        {
            "id": _MODEL,
            "object": "model",
            "created": _CREATED,
            "owned_by": "fastovms",
            "root": _MODEL,
            "parent": None,
            "max_model_len": 1024,
            "permission": [],
            "status": {"value": "loaded"},
        }
    ],
}

_TIME: Final = "2026-01-01T00:00:00.000000Z"
_FEW: Final = {"num_predict": 10, "temperature": 0}
_ENDED: Final[Answer] = {
    "model": _MODEL,
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

EXAMPLES: Final[Mapping[str, tuple[Requests, Answer | None]]] = {
    "completions": (_COMPLETIONS, _COMPLETION),
    "chats": (_CHATS, _CHAT_COMPLETION),
    "messages": (_MESSAGES, _MESSAGE),
    "tokens of messages": ({"A question": {"messages": [_USER]}}, {"input_tokens": 17}),
    "responses": (_RESPONSES, _RESPONSE),
    "tokens of a response": (
        {"A question": {"input": _QUESTION}},
        {"object": "response.input_tokens", "input_tokens": 17},
    ),
    "compaction": ({"A question": {"input": _QUESTION}}, None),
    "conversations": (
        {"With a first item": {"items": [_ITEM], "metadata": {"topic": "a"}}},
        _CONVERSATION,
    ),
    "conversation": ({}, _CONVERSATION),
    "metadata of a conversation": ({"A topic": {"metadata": {"topic": "a"}}}, None),
    "items": ({"A message": {"items": [_ITEM]}}, None),
    "embeddings": ({"Two texts": {"input": ["Once upon a time", "The end"]}}, None),
    "rerank": ({"Two documents": {"query": "hello", "documents": ["welcome", "farewell"]}}, None),
    "score": ({"One with two": {"text_1": "hello", "text_2": ["welcome", "farewell"]}}, None),
    "decisions": (
        {
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
        None,
    ),
    "batches": (
        {
            "Chats": {
                "input_file_id": "file-0123456789abcdef0123456789abcdef",
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        },
        None,
    ),
    "tokenize": (
        {"A text": {"prompt": "Once upon a time"}},
        {"count": 3, "max_model_len": 1024, "tokens": [1, 403, 378], "token_strs": None},
    ),
    "tokenize in OVMS's format": (
        {"A text": {"text": "Once upon a time"}},
        {"tokens": [1, 403, 378]},
    ),
    "detokenize": ({"Some tokens": {"tokens": [5, 6, 7]}}, {"prompt": "Once upon a time"}),
    "models": ({}, _MODEL_LIST),
    "Ollama's version": ({}, {"version": "0.12.11"}),
    "Ollama's models": (
        {},
        {
            "models": [
                {
                    "name": _MODEL,
                    "model": _MODEL,
                    "modified_at": _TIME,
                    "size": 1200000000,
                    "digest": "394bae754f45ea10a380ee9ec602294536a9d76dbbd16d6519429bb8ae0471d9",
                    "details": _DETAILS,
                }
            ]
        },
    ),
    "Ollama's chat": (
        {
            "A question": {"messages": [_USER], "stream": False, "options": _FEW},
            "A stream": {"messages": [_USER], "options": _FEW},
        },
        {**_ENDED, "message": {"role": "assistant", "content": _ANSWER}},
    ),
    "Ollama's texts": (
        {
            "A question": {"prompt": "What is 1 + 1?", "stream": False, "options": _FEW},
            "A text to continue": {"prompt": "Once", "raw": True, "options": _FEW},
        },
        {**_ENDED, "response": "2", "context": [1, 316, 209]},
    ),
    "Ollama's model": (
        {"A model": {}},
        {
            "modelfile": "FROM qwen3\n",
            "parameters": "temperature                    0.6",
            "template": "{%- for message in messages %}...",
            "details": _DETAILS,
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
            "capabilities": ["completion", "tools", "thinking"],
            "modified_at": _TIME,
        },
    ),
    "Ollama's download": ({"A model": {"stream": False}}, {"status": "success"}),
}
"""Request bodies by title, and a response, by the names that operations refer to."""
