"""Examples of requests and answers. A test sends the requests and validates the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
USER: Final = {"role": "user", "content": _QUESTION}
_MODEL: Final = "qwen3"
_CREATED: Final = 1767225600
_FINGERPRINT: Final = "fastovms-0.2.0"

COMPLETIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "A prompt": {"prompt": "Once upon a time", "max_tokens": 20},
    "Several prompts": {"prompt": ["Once upon", "Long ago"], "max_tokens": 5, "temperature": 0},
    "A stream": {"prompt": "Once upon a time", "max_tokens": 5, "stream": True,
                 "stream_options": {"include_usage": True}},
}  # fmt: skip

CHATS: Final[Mapping[str, Mapping[str, Any]]] = {
    "A question": {"messages": [USER], "max_tokens": 20, "temperature": 0},
    "A stream": {"messages": [USER], "max_tokens": 10, "stream": True},
    "A tool": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Tells the weather of a city.",
                    "parameters": _WEATHER,
                },
            }
        ],
        "max_tokens": 50,
    },
    "A structured answer": {
        "messages": [USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "capital", "schema": _CAPITAL},
        },
        "max_tokens": 50,
    },
}

MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "A question": {"messages": [USER], "max_tokens": 20, "temperature": 0},
    "A stream": {"messages": [USER], "max_tokens": 10, "stream": True},
    "A tool": {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "name": "get_weather",
                "description": "Tells the weather of a city.",
                "input_schema": _WEATHER,
            }
        ],
        "max_tokens": 50,
    },
    "A structured answer": {
        "messages": [USER],
        "output_config": {"format": {"type": "json_schema", "schema": _CAPITAL}},
        "max_tokens": 50,
    },
}

MESSAGE: Final[Mapping[str, Any]] = {
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

RESPONSES: Final[Mapping[str, Mapping[str, Any]]] = {
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

ITEM: Final = {
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

COMPLETION: Final = {
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

CHAT_COMPLETION: Final = {
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

RESPONSE: Final = {
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

CONVERSATION: Final = {
    "id": "conv_1",
    "object": "conversation",
    "created_at": _CREATED,
    "metadata": {"topic": "a"},
}

MODEL_LIST: Final = {
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
