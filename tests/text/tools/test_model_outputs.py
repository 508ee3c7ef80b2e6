"""Answers in the form in which each family of models writes them, token for token: calls with
nested values, after text and thoughts, several, cut short, and what the models get wrong."""

from __future__ import annotations

import json
import random
import re
from typing import Any, NamedTuple

import pytest

from fastovms.text.output_parser import output_parser
from fastovms.text.reasoning import REASONING_FORMATS
from fastovms.text.scanning.output import CallArguments, CallBegin, CallEnd, Content, Reasoning
from fastovms.text.tools import TOOL_FORMATS, Tool
from tests.text.parsing import parse

TOOLS = [
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "detailed": {"type": "boolean"},
            },
            "required": ["city"],
        },
    ),
    Tool(
        "write_file",
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    ),
    Tool(
        "book",
        {
            "type": "object",
            "properties": {
                "guests": {"type": "array", "items": {"type": "object"}},
                "options": {"type": "object"},
                "price": {"type": "number"},
                "note": {"type": ["string", "null"]},
            },
        },
    ),
    Tool("get_current_time", {"type": "object", "properties": {}}),
]

PARIS = ("get_weather", {"city": "Paris"})
WEEK = ("get_weather", {"city": "São Paulo", "days": 7, "units": "celsius", "detailed": True})
TIME = ("get_current_time", {})
CODE = 'def f(x):\n    return {"a": [x, \'}\'], "b": "</x>\\n"}  # "quoted" \\ done\n'
FILE = ("write_file", {"path": "src/a b.py", "content": CODE})
BOOK = (
    "book",
    {
        "guests": [{"name": 'Zoë "Z" O\'Neil', "age": 5}, {"name": "李雷", "age": None}],
        "options": {"smoking": False, "rooms": [1, 2.5, []], "deep": {"er": {"est": {}}}},
        "price": -1.5e3,
        "note": None,
    },
)
CALLS = (PARIS, WEEK, TIME, FILE, BOOK)

Call = tuple[str, Any]


class Answer(NamedTuple):
    """`calls` with arguments as text are cut short."""

    text: str
    calls: tuple[Call, ...] = ()
    content: str = ""
    reasoning: str = ""
    prompt: str = ""


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def python(value: object) -> str:
    if isinstance(value, dict):
        items = ", ".join(f"{python(key)}: {python(item)}" for key, item in value.items())
        return f"{{{items}}}"
    return repr(value)


def pythonic(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={python(value)}' for key, value in arguments.items())})"


def plain(value: object) -> str:
    """A value as formats with elements have it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def gemma(value: object) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{gemma(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(gemma, value)) + "]"
        case _:
            return json.dumps(value)


# What each model writes for one call, and for several.


def hermes(*calls: Call) -> str:
    found = [json.dumps({"name": name, "arguments": a}, ensure_ascii=False) for name, a in calls]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in found)


def llama(*calls: Call) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": a}) for name, a in calls)


def objects(*calls: Call) -> str:
    return json.dumps([{"name": name, "arguments": a} for name, a in calls], ensure_ascii=False)


def python_list(*calls: Call) -> str:
    return f"[{', '.join(pythonic(*call) for call in calls)}]"


def qwen_coder(*calls: Call) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{plain(v)}\n</parameter>\n" for key, v in a.items())
        + "</function>\n</tool_call>"
        for name, a in calls
    )


def glm(*calls: Call, line: str = "\n") -> str:
    return "\n".join(
        f"<tool_call>{name}{line}"
        + "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{plain(v)}</arg_value>{line}"
            for key, v in a.items()
        )
        + "</tool_call>"
        for name, a in calls
    )


def minicpm(*calls: Call) -> str:
    return "\n".join(
        f'<function name="{name}">'
        + "".join(
            f'<param name="{key}"><![CDATA[{v}]]></param>'
            if isinstance(v, str) and ("<" in v or "\n" in v)
            else f'<param name="{key}">{plain(v)}</param>'
            for key, v in a.items()
        )
        + "</function>"
        for name, a in calls
    )


def onyx(*calls: Call) -> str:
    return "<|start|>assistant".join(
        f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
        + "".join(
            f'<atem:parameter name="{key}">{plain(v)}</atem:parameter>\n' for key, v in a.items()
        )
        + "</atem:invoke>\n</atem:function_calls><|eom|>"
        for name, a in calls
    )


def harmony(*calls: Call) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        f"<|message|>{compact(a)}<|call|>"
        for name, a in calls
    )


def deepseek(*calls: Call) -> str:
    return (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
            f"{json.dumps(a, ensure_ascii=False)}\n```<｜tool▁call▁end｜>"
            for name, a in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def deepseek_v31(*calls: Call) -> str:
    return (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(a, ensure_ascii=False)}"
            "<｜tool▁call▁end｜>"
            for name, a in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def elements(
    *calls: Call,
    function: tuple[str, str, str],
    parameter: tuple[str, str, str],
    around: tuple[str, str] = ("", ""),
    line: str = "\n",
) -> str:
    """Calls as elements: what stands before and after a name, and at the end."""
    return line.join(
        f"{around[0]}{function[0]}{name}{function[1]}{line}"
        + "".join(
            f"{parameter[0]}{key}{parameter[1]}{plain(v)}{parameter[2]}{line}"
            for key, v in a.items()
        )
        + function[2]
        + around[1]
        for name, a in calls
    )


def seed(*calls: Call) -> str:
    return elements(
        *calls,
        function=("<function=", ">", "</function>"),
        parameter=("<parameter=", ">", "</parameter>"),
        around=("<seed:tool_call>\n", "\n</seed:tool_call>"),
    )


def minimax(*calls: Call) -> str:
    invokes = elements(
        *calls,
        function=('<invoke name="', '">', "</invoke>"),
        parameter=('<parameter name="', '">', "</parameter>"),
    )
    return f"<minimax:tool_call>\n{invokes}\n</minimax:tool_call>"


def dsml(*calls: Call) -> str:
    lines = []
    for name, a in calls:
        lines.append(f'<｜DSML｜invoke name="{name}">')
        for key, v in a.items():
            kind = "true" if isinstance(v, str) else "false"
            begin = f'<｜DSML｜parameter name="{key}" string="{kind}">'
            lines.append(f"{begin}{plain(v)}</｜DSML｜parameter>")
        lines.append("</｜DSML｜invoke>")
    return "\n".join(["<｜DSML｜function_calls>", *lines, "</｜DSML｜function_calls>"])


def step(*calls: Call) -> str:
    invokes = elements(
        *calls,
        function=('<steptml:invoke name="', '">', "</steptml:invoke>"),
        parameter=('<steptml:parameter name="', '">', "</steptml:parameter>"),
        around=("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"),
        line="",
    )
    return f"<｜tool_calls_begin｜>{invokes}<｜tool_calls_end｜>"


def hunyuan(*calls: Call) -> str:
    found = [
        f"<tool_call>{name}<tool_sep>\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{plain(v)}</arg_value>\n" for key, v in a.items()
        )
        + "</tool_call>"
        for name, a in calls
    ]
    return "\n".join(["<tool_calls>", *found, "</tool_calls>"])


def cohere(*calls: Call) -> str:
    return json.dumps(
        [
            {"tool_call_id": str(i), "tool_name": name, "parameters": a}
            for i, (name, a) in enumerate(calls)
        ],
        indent=4,
    )


def function_gemma(*calls: Call) -> str:
    return "".join(
        f"<start_function_call>call:{n}{gemma(a)}<end_function_call>".replace('<|"|>', "<escape>")
        for n, a in calls
    )


def kimi(*calls: Call) -> str:
    found = [
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{compact(a)}"
        "<|tool_call_end|>"
        for i, (name, a) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(found)}<|tool_calls_section_end|>"


def olmo(*calls: Call) -> str:
    lines = "\n".join(pythonic(*call) for call in calls)
    return f"<function_calls>\n{lines}\n</function_calls>"


def marked(value: object) -> str:
    """A value as elements within elements, each tag behind MiniMax M3's token."""
    match value:
        case dict() if value:
            return "".join(tagged(key, item) for key, item in value.items())
        case list() if value:
            return "".join(tagged("item", item) for item in value)
        case _:
            return plain(value)


def tagged(name: str, value: object) -> str:
    return f"]<]minimax[>[<{name}>{marked(value)}]<]minimax[>[</{name}>"


def minimax_m3(*calls: Call) -> str:
    invokes = "\n".join(
        f']<]minimax[>[<invoke name="{name}">{marked(a) if a else ""}]<]minimax[>[</invoke>'
        for name, a in calls
    )
    return f"]<]minimax[>[<tool_call>\n{invokes}\n]<]minimax[>[</tool_call>"


FAMILIES = {
    "minimax_m3": minimax_m3,
    "apertus": lambda *calls: (
        f"<|tools_prefix|>{json.dumps([{n: a} for n, a in calls])}<|tools_suffix|>"
    ),
    "command_r": lambda *calls: f"Action: ```json\n{cohere(*calls)}```",
    "command_r7b": lambda *calls: f"<|START_ACTION|>{cohere(*calls)}<|END_ACTION|>",
    "deepseek_v32": dsml,
    "functionary_v31": lambda *calls: "".join(
        f"<function={n}>{json.dumps(a)}</function>" for n, a in calls
    ),
    "functionary_v32": lambda *calls: ">>>".join(f"{n}\n{json.dumps(a)}" for n, a in calls),
    "functiongemma": function_gemma,
    "granite_20b_fc": lambda *calls: "\n".join(
        f"<function_call> {json.dumps({'name': n, 'arguments': a})}" for n, a in calls
    ),
    "hunyuan_v3": hunyuan,
    "internlm": lambda *calls: "".join(
        f"<|action_start|><|plugin|>\n{json.dumps({'name': n, 'parameters': a})}<|action_end|>"
        for n, a in calls
    ),
    "jamba": lambda *calls: f"<tool_calls>{objects(*calls)}</tool_calls>",
    "json": lambda *calls: "\n".join(
        json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in calls
    ),
    "kimi_k2": kimi,
    "minimax_m2": minimax,
    "nemotron": lambda *calls: f"<TOOLCALL>{objects(*calls)}</TOOLCALL>",
    "olmo3": olmo,
    "seed_oss": seed,
    "step3": step,
    "xlam": objects,
    "hermes3": hermes,
    "llama3": llama,
    "pythonic": python_list,
    "mistral": lambda *calls: f"[TOOL_CALLS] {objects(*calls)}",
    "devstral": lambda *calls: "".join(
        f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a, ensure_ascii=False)}" for name, a in calls
    ),
    "phi4": lambda *calls: f"functools{objects(*calls)}",
    "granite": lambda *calls: f"<|tool_call|>{objects(*calls)}",
    "deepseek": deepseek,
    "deepseek_v31": deepseek_v31,
    "qwen3coder": qwen_coder,
    "glm45": glm,
    "gptoss": harmony,
    "onyx": onyx,
    "gemma4": lambda *calls: "".join(
        f"<|tool_call>call:{n}{gemma(a)}<tool_call|>" for n, a in calls
    ),
    "lfm2": lambda *calls: f"<|tool_call_start|>{python_list(*calls)}<|tool_call_end|>",
    "minicpm5": minicpm,
}
THOUGHTS = {
    "gptoss": "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant",
    "onyx": " to=self<|message|>I think.<|eom|><|start|>assistant",
    "gemma4": "<|channel>thought\nI think.\n<channel|>",
}
TEXTS = {
    "gptoss": "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant",
    "onyx": " to=user<|message|>I look.<|eom|><|start|>assistant",
    "functionary_v32": "all\nI look.\n>>>",
}
NO_TEXT_BEFORE = {"json", "llama3", "pythonic", "xlam"}
"""Their calls are the whole answer."""

REASONING = {
    "deepseek": "deepseek", "deepseek_v31": "deepseek", "granite": "granite", "gptoss": "gptoss",
    "onyx": "onyx", "gemma4": "gemma4", "lfm2": "lfm2", "minicpm5": "minicpm5",
}  # fmt: skip


def pieces_of(text: str, seed: int) -> list[str]:
    """As tokens might cut it: words, tags, digits and signs, some of them in two or together."""
    rng = random.Random(seed)
    tokens = re.findall(r"<[^<>\s]{1,30}>|\[[A-Z_]+\]| ?\w+|\s+|[^\w\s]{1,3}", text)
    pieces: list[str] = []
    for token in tokens:
        if seed and rng.random() < 0.3 and len(token) > 1:
            at = rng.randrange(1, len(token))
            pieces += [token[:at], token[at:]]
        elif seed and pieces and rng.random() < 0.2:
            pieces[-1] += token
        else:
            pieces.append(token)
    assert "".join(pieces) == text
    return pieces


def read(name: str, reasoning: str | None, answer: Answer, texts: list[str]) -> Answer:
    parser = output_parser(
        TOOL_FORMATS[name],
        REASONING_FORMATS[reasoning] if reasoning else None,
        prompt=answer.prompt,
        tools=TOOLS,
    )
    calls: list[Call] = []
    told = {Content: "", Reasoning: ""}
    for piece in parse(parser, texts):
        match piece:
            case CallBegin(index, called):
                assert index == len(calls)
                calls.append((called, ""))
            case CallArguments(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
            case CallEnd(index, complete):
                if complete:
                    calls[index] = (calls[index][0], json.loads(calls[index][1]))
            case Content(text) | Reasoning(text):
                told[type(piece)] += text
    return Answer(answer.text, tuple(calls), told[Content], told[Reasoning], answer.prompt)


def check(name: str, answer: Answer, reasoning: str | None = None) -> None:
    for texts in (
        [answer.text],
        list(answer.text),
        *(pieces_of(answer.text, s) for s in range(12)),
    ):
        assert read(name, reasoning, answer, texts) == answer, texts


FAMILY = pytest.mark.parametrize("name", FAMILIES)


@FAMILY
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_one_call(name: str, call: Call) -> None:
    check(name, Answer(FAMILIES[name](call), (call,)))


@FAMILY
def test_several_calls(name: str) -> None:
    check(name, Answer(FAMILIES[name](*CALLS), CALLS))


def test_glm_without_line_breaks() -> None:
    check("glm45", Answer(glm(*CALLS, line=""), CALLS))


@FAMILY
def test_a_thought_and_text_before_calls(name: str) -> None:
    reasoning = REASONING.get(name, "qwen3")
    thought = THOUGHTS.get(name, "<think>\nI think.\n</think>\n\n")
    calls = FAMILIES[name](PARIS, BOOK)
    check(name, Answer(thought + calls, (PARIS, BOOK), reasoning="I think."), reasoning)
    text = "" if name in NO_TEXT_BEFORE else "I look."
    written = TEXTS.get(name, f"{text}\n\n") if text else ""
    answer = Answer(written + calls, (PARIS, BOOK), text)
    check(name, answer, reasoning)
    answer = Answer(thought + written + calls, (PARIS, BOOK), text, "I think.")
    check(name, answer, reasoning)


@FAMILY
def test_calls_that_are_cut_short(name: str) -> None:
    """At any place: whole calls are right, one that is not is no JSON, and what is content is at
    most the markup of a call that has not begun. No arguments at all are empty ones, as in
    OVMS."""
    text = FAMILIES[name](FILE, BOOK)
    for end in range(1, len(text)):
        found = read(name, None, Answer(text[:end]), [text[:end]])
        assert read(name, None, Answer(text[:end]), list(text[:end])) == found
        for i, (called, told) in enumerate(found.calls):
            assert called == (FILE, BOOK)[i][0]
            assert isinstance(told, str) or told in ((FILE, BOOK)[i][1], {})
            assert isinstance(told, dict) or i == len(found.calls) - 1
        if found.calls:
            assert "src" not in found.content
            assert "Zo" not in found.content
            assert len(found.content) < 100
        if found.calls and isinstance(found.calls[-1][1], str):
            assert not found.content


@FAMILY
def test_text_without_calls(name: str) -> None:
    """With brackets, braces and tags of others in it."""
    text = 'Use `f(x)` or [1, 2] or {"a": 1}; <b>bold</b> & a < b.\n\n```json\n{"k": [1]}\n```\nÜ'
    written = text
    if name == "gptoss":
        written = f"<|channel|>final<|message|>{text}<|return|>"
    elif name == "functionary_v32":
        written = f"all\n{text}"
    elif name == "onyx":
        written = f" to=user<|message|>{text}<|eot|>"
    check(name, Answer(written, (), text))
