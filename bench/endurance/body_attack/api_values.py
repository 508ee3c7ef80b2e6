"""Chooses values for the fields of request bodies, nearly all of which are valid.

Fields whose type says little are chosen by name, the others by type. The generator determines every
choice.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, Final

import msgspec
from PIL import Image

from bench.endurance.body_attack.hostile_grammars import schema
from fastovms.params import SamplingFields
from fastovms.request_fields import rows_of

_WORDS: Final = (
    "a",
    "Once upon a time",
    "",
    "What is the weather in Paris?",
    "é",
    "😀",
    " ",
    "\n",
    "x y",
)
_NAMES: Final = ("f", "get_weather", "search", "a-b", "f_1")
_TEMPLATES: Final = (
    "{% for message in messages %}{{ message.content }}{% endfor %}",
    "{{ messages[0].content }}{{ tools }}",
    "{{ messages | tojson }}",
    "{{ undefined.member }}",
    "{% for i in range(100000000) %}x{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "{% if %}",
    "{{ 'a' * 100000000 }}",
)
_REGEXES: Final = (
    *(
        "[a-z]+",
        "(a|b)*c",
        r"\d{1,3}",
        "a{0,1000}",
        "(a+)+b",
        "[^\x00-\x1f]*",
        "(?i)abc",
        "(",
        "[",
        "a{5,2}",
    ),
    *(r"(a)\1", "(?=a)", r"\p{L}+", "((((a?)?)?)?)?", ".*", "^a$", "a{99999}", "(?P<n>a)"),
)
_GRAMMARS: Final = (
    *(
        'start: "a" | "b"',
        "start: WORD\nWORD: /[a-z]+/",
        'root ::= "a" | "b"',
        "start: start",
        "start:",
    ),
    *('start: "a"~1..3', "start: a\na: b\nb: a", "%ignore /a/\nstart: /b/", 'root ::= [a-z]+ "x"?'),
)

_DEPTH: Final = 4
"""The depth at which the schemas of a body begin. A greater depth gives smaller schemas."""

Value = Callable[[Random], Any]


def word(rng: Random) -> str:
    """Returns a short text, occasionally a longer one."""
    return rng.choice(_WORDS) * (1 if rng.random() < 0.9 else rng.randrange(1, 60))


def _schema_text(rng: Random) -> str:
    """Returns a small JSON Schema of the kind that the `schemas` test builds."""
    return schema(rng, depth=_DEPTH)


def _schema(rng: Random) -> Any:
    return json.loads(_schema_text(rng))


def _json_format(rng: Random) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": _schema(rng)}}


def _regex_format(rng: Random) -> dict[str, Any]:
    return {"type": "regex", "pattern": rng.choice(_REGEXES)}


def _structural_tag(rng: Random) -> dict[str, Any]:
    content = rng.choice(
        (
            lambda: {"type": "json_schema", "json_schema": _schema(rng)},
            lambda: _regex_format(rng),
            lambda: {"type": "any_text"},
            lambda: {"type": "const_string", "value": word(rng)},
        )
    )
    tag = {"type": "tag", "begin": "<a>", "content": content(), "end": "</a>"}
    return {"type": "structural_tag", "format": tag}


def _structured_outputs(rng: Random) -> dict[str, Any]:
    name = rng.choice(tuple(_CONSTRAINTS))
    return {name: _CONSTRAINTS[name](rng)}


def _tool(rng: Random) -> dict[str, Any]:
    members: dict[str, Any] = {"name": rng.choice(_NAMES), "parameters": _schema(rng)}
    if rng.random() < 0.5:
        members["parameters"] = {"type": "object", "properties": {"a": _schema(rng)}}
    if rng.random() < 0.3:
        members["strict"] = rng.random() < 0.5
    form = rng.random()
    return (
        {"type": "function", "function": members} if form < 0.7 else {"type": "function", **members}
    )


def _tool_choice(rng: Random) -> Any:
    named = {"type": "function", "function": {"name": rng.choice(_NAMES)}}
    flat = {"type": "function", "name": rng.choice(_NAMES)}
    return rng.choice(("auto", "none", "required", named, flat))


@cache
def _images() -> tuple[bytes, ...]:
    """Returns valid images of all formats and pixel types: small ones and one of 4 megapixels."""
    images = [_encoded("PNG", "1", (2000, 2000))]
    for form in ("PNG", "GIF", "BMP", "WEBP"):
        for mode in ("RGB", "L", "RGBA", "P", "1"):
            images += [_encoded(form, mode, size) for size in ((1, 1), (7, 30), (40, 40))]
    return tuple(images)


def _encoded(form: str, mode: str, size: tuple[int, int]) -> bytes:
    data = io.BytesIO()
    Image.new(mode, size, 1).save(data, form)
    return data.getvalue()


def image_url(rng: Random) -> str:
    """Returns a data URL of a valid or damaged image, occasionally another URL."""
    content = rng.choice(_images())
    if rng.random() < 0.4:
        place = rng.randrange(len(content))
        damage = bytes([rng.randrange(256)]) * rng.randrange(5)
        content = content[:place] + damage + content[place + 1 :]
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    others = ("http://127.0.0.1/a.png", "file:///etc/passwd", "/etc/passwd", "data:,", url[:-3], "")
    return url if rng.random() < 0.9 else rng.choice(others)


def _part(rng: Random) -> dict[str, Any]:
    kind = rng.choice(("text", "text", "input_text", "output_text", "image_url", "input_image"))
    if kind == "image_url":
        return {"type": kind, kind: {"url": image_url(rng), "detail": "low"}}
    if kind == "input_image":
        return {"type": kind, "image_url": image_url(rng)}
    return {"type": kind, "text": word(rng)}


def _content(rng: Random) -> Any:
    return word(rng) if rng.random() < 0.8 else [_part(rng) for _ in range(rng.randrange(1, 3))]


def _message(rng: Random) -> dict[str, Any]:
    role = rng.choice(("user", "user", "user", "system", "developer", "assistant", "tool"))
    message = {"role": role, "content": _content(rng)}
    if role == "assistant" and rng.random() < 0.5:
        call = {"name": rng.choice(_NAMES), "arguments": json.dumps({"a": word(rng)})}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
    elif role == "tool":
        message["tool_call_id"] = "call_1"
    return message


def _messages(rng: Random) -> list[dict[str, Any]]:
    return [
        *(_message(rng) for _ in range(rng.choice((0, 0, 1, 3)))),
        {"role": "user", "content": "a"},
    ]


def _item(rng: Random) -> dict[str, Any]:
    kind = rng.choice(("message", "message", *_ITEMS))
    return {"type": kind, **(_message(rng) if kind == "message" else _ITEMS[kind](rng))}


def _items(rng: Random) -> list[dict[str, Any]]:
    return [_item(rng) for _ in range(rng.randrange(1, 4))]


_ITEMS: Final[Mapping[str, Value]] = {
    "function_call": lambda rng: {"call_id": "c", "name": "f", "arguments": "{}"},
    "function_call_output": lambda rng: {"call_id": "c", "output": word(rng)},
    "reasoning": lambda rng: {"summary": [{"type": "summary_text", "text": word(rng)}]},
    "item_reference": lambda rng: {"id": "msg_none"},
}


def _of(*values: Any) -> Value:
    return lambda rng: deepcopy(rng.choice(values))  # what is made of it is changed in place


GRAMMAR_FIELDS: Final = frozenset(
    (
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "tools",
    )
)
"""The fields that require a compilation. Few bodies have one, because compiling takes most of the
time."""

_CONSTRAINTS: Final[Mapping[str, Value]] = {
    "json": _schema,
    "json_object": _of(True),
    "regex": _of(*_REGEXES),
    "choice": lambda rng: [word(rng), "b"],
    "grammar": _of(*_GRAMMARS),
    "structural_tag": lambda rng: json.dumps(_structural_tag(rng)),
}
_FORMATS: Final[Sequence[Value]] = (
    *(_json_format, _regex_format, _structural_tag),
    *(_of({"type": "text"}), _of({"type": "json_object"})),
)


def _questions(rng: Random) -> Any:
    """Returns questions in OpenAI's or vLLM's format."""
    options = [word(rng) for _ in range(rng.choice((1, 2, 3, 40)))]
    if rng.random() < 0.5:
        listed = {
            "choices": [{"value": o} for o in options],
            "levels": [{"label": o} for o in options],
        }
        kind = rng.choice(("predicate", "choice", "score"))
        member = {"choice": "choices", "score": "levels"}.get(kind)
        question = {"type": kind, "instructions": word(rng)}
        return [question if member is None else {**question, member: listed[member]}]
    criteria = rng.choice((None, options, dict.fromkeys(options)))
    kind = rng.choice(("choice", "noul", "score"))
    return {word(rng): {"type": kind, "instructions": word(rng), "criteria": criteria}}


FIELDS: Final[Mapping[str, Value]] = {
    "model": _of("demo_model", "demo_model", "demo_model", "none", ""),
    "prompt": lambda rng: rng.choice((word(rng), [word(rng)], [5, 6, 7], [[5], [6, 7]])),
    "text": lambda rng: rng.choice((word(rng), [word(rng), "a"])),
    "tokens": lambda rng: [rng.randrange(300) for _ in range(rng.randrange(8))],
    "messages": _messages,
    "input": lambda rng: word(rng) if rng.random() < 0.5 else _items(rng),
    "items": _items,
    "questions": _questions,
    "state": lambda rng: rng.choice((word(rng), {"a": [word(rng)]}, [1])),
    "tools": lambda rng: [_tool(rng) for _ in range(rng.randrange(1, 3))],
    "tool_choice": _tool_choice,
    "response_format": lambda rng: rng.choice(_FORMATS)(rng),
    "structured_outputs": _structured_outputs,
    "guided_json": lambda rng: _schema(rng) if rng.random() < 0.7 else _schema_text(rng),
    "guided_regex": _of(*_REGEXES),
    "guided_grammar": _of(*_GRAMMARS),
    "chat_template": _of(*_TEMPLATES),
    "chat_template_kwargs": lambda rng: {
        rng.choice(("enable_thinking", "a", "messages")): word(rng)
    },
    "logit_bias": lambda rng: {str(rng.randrange(300)): rng.randrange(-100, 100)},
    "stream_options": lambda rng: {"include_usage": rng.random() < 0.5},
    "max_tokens": _of(1, 2, 4),
    "max_completion_tokens": _of(1, 2, 4),
    "max_output_tokens": _of(1, 2, 4),
    "max_length": _of(1, 8, 100),
    "n": _of(1, 2),
    "best_of": _of(1, 2),
    **{name: _of(*row.examples("ovms").taken) for name, row in rows_of(SamplingFields).items()},
    "logprobs": _of(True, False, 0, 1, 5),
    "top_logprobs": _of(0, 1, 5),
    "prompt_logprobs": _of(0, 1),
    "allowed_token_ids": lambda rng: [rng.randrange(300) for _ in range(3)],
    "stop_token_ids": lambda rng: [rng.randrange(300)],
    "truncation": _of("auto", "disabled"),
    "truncation_side": _of("left", "right"),
    "padding_side": _of("left", "right"),
    "reasoning": lambda rng: {"effort": rng.choice(("low", "high")), "summary": "auto"},
    "reasoning_effort": _of("low", "medium", "high"),
    "metadata": lambda rng: {word(rng)[:60]: word(rng)[:500]},
    "text.format": lambda rng: {
        "format": {"type": "json_schema", "name": "n", "schema": _schema(rng)}
    },
    "conversation": _of("conv_none", {"id": "conv_none"}),
    "previous_response_id": _of("resp_none"),
    "include": _of(["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
    "modalities": _of(["text"], ["audio"]),
    "service_tier": _of("auto", "default"),
    "priority": _of(0, 1, -1),
    "cache_salt": _of("a", "b"),
}


def value_of(name: str, kind: msgspec.inspect.Type, rng: Random) -> Any:
    """Returns a value for a field, chosen by its name or its type."""
    make = FIELDS.get(name)
    return _of_type(kind, rng) if make is None else make(rng)


def _of_type(kind: msgspec.inspect.Type, rng: Random, depth: int = 0) -> Any:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            usual = [each for each in types if not isinstance(each, msgspec.inspect.NoneType)]
            return _of_type(rng.choice(usual), rng, depth)
        case msgspec.inspect.BoolType():
            return rng.random() < 0.5
        case msgspec.inspect.IntType():
            return rng.choice((0, 1, 2, 7))
        case msgspec.inspect.FloatType():
            return rng.choice((0.0, 0.5, 1.0, 1.5))
        case msgspec.inspect.ListType(item_type=item) if depth < 4:
            return [_of_type(item, rng, depth + 1) for _ in range(rng.randrange(3))]
        case msgspec.inspect.DictType(value_type=value) if depth < 4:
            return {word(rng): _of_type(value, rng, depth + 1) for _ in range(rng.randrange(3))}
        case msgspec.inspect.StrType():
            return word(rng)
    return rng.choice((None, 1, "a", [], {}))
