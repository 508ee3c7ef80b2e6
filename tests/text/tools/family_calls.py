"""Writes calls in the form in which each family of models writes them."""

from __future__ import annotations

import json
from typing import Any

Call = tuple[str, Any]


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
