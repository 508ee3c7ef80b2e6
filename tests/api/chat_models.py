"""A chat model with fakes."""

from __future__ import annotations

from typing import Any

from fastovms.api.served import ChatModel
from fastovms.config import ChatConfig
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.template_files import make_template
from fastovms.text.tools import TOOL_FORMATS

SOURCE = """
{%- for tool in tools or [] %}<tool {{ tool.function.name }}>{% endfor %}
{%- for message in messages %}
{%- if message.content == 'bad' %}{{ raise_exception('no such role: bad') }}{% endif %}
{{- message.role[0] }}:{{ message.content }}
{%- if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}
{%- for call in message.tool_calls or [] %}
{{- '{' }}{{ call.function.name }} {{ call.function.arguments }}}
{%- endfor %};
{%- endfor %}
{%- for document in documents or [] %}<doc {{ document.title }}>{% endfor %}
{%- if reasoning_effort %}<effort {{ reasoning_effort }}>{% endif %}
{%- if enable_thinking is defined %}<thinking {{ enable_thinking }}>{% endif %}
{%- if style %}<style {{ style }}>{% endif %}
{%- if add_generation_prompt %}>{% endif %}
{%- if opened %}<think>{% endif %}"""
"""A short template that shows all its inputs: `u:Hello;>`."""

TEMPLATE = make_template({"default": SOURCE}, {"bos_token": "<s>"})

MESSAGES = [{"role": "user", "content": "Hi"}]

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def chat_model(**config: Any) -> ChatModel:
    return ChatModel(
        TEMPLATE, TOOL_FORMATS["hermes3"], REASONING_FORMATS["qwen3"], ChatConfig(**config)
    )


def tool(name: str = "get_weather", **members: Any) -> dict[str, Any]:
    function = {"name": name, "description": "A tool", "parameters": PARAMETERS, **members}
    return {"type": "function", "function": function}


def custom(name: str = "write", **members: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **members}}


def grammar_format(definition: str, syntax: str = "lark") -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def tool_choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def call_text(name: str = "get_weather", arguments: str = '{"city":"Paris"}') -> str:
    """Returns a call in the model's own markup."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


BROKEN = [
    "Let me see <tool_ca", "Let me see <tool_call>", "<tool_call>", "4 <think", "<think>",
    call_text("get_weather", '"{a: 1"'), call_text("get_weather", "{a: 1}"),
]  # fmt: skip
"""Markup that is neither a call nor reasoning."""


def prompt_of(api: Any, position: int = -1) -> str:
    """Returns the prompt that the model was given."""
    return bytes(api.backend.submitted[position].prompt_token_ids).decode()
