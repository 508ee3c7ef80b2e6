"""Which form of messages templates read, and that chats of any form come out right."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

import pytest

from fastovms.server_config import DEMO_MODEL
from fastovms.text.template import ChatTemplate
from fastovms.text.template_files import load_template, make_template
from fastovms.text.template_forms import OUTCOMES
from fastovms.text.template_messages import TemplateForm, adapt
from tests.paths import TEMPLATES

TEMPLATE_NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
NOW = datetime(2026, 7, 26)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "hello"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a":1,"b":"ü"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "2"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def load(name: str, content_format: str = "auto") -> ChatTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    return make_template(
        {"default": source}, TOKENS, content_format=content_format, now=lambda: NOW
    )


@pytest.mark.parametrize("name", ["qwen3", "llama3", "mistral", "gptoss", "gemma3", "deepseek"])
def test_text_and_text_parts_are_the_same(name):
    template = load(name)
    system = {"role": "system", "content": "Be brief."}
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in (system, USER)
    ]
    text = template.render([system, USER])
    assert template.render(parts) == text
    assert "Be brief." in text
    assert "hello" in text
    assert "'text'" not in text


@pytest.mark.parametrize(
    ("name", "end"),
    [
        (
            "qwen3",
            '<tool_call>\n{"name": "add", "arguments": {"a":1,"b":"ü"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n",
        ),
        (
            "llama3",
            '{"name": "add", "parameters": {"a": 1, "b": "ü"}}<|eot_id|>'
            "<|start_header_id|>ipython<|end_header_id|>\n\n2<|eot_id|>",
        ),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": "ü"}, "id": "call00001"}]</s>'
            '[TOOL_RESULTS] {"content": 2, "call_id": "call00001"}[/TOOL_RESULTS]',
        ),
        (
            "gptoss",
            '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1, '
            '"b": "ü"}<|call|>'
            '<|start|>functions to=assistant<|channel|>commentary<|message|>"2"<|end|>',
        ),
        (
            "deepseek",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n"
            '```json\n{"a":1,"b":"ü"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            "<｜end▁of▁sentence｜><｜tool▁output▁begin｜>2<｜tool▁output▁end｜>",
        ),
    ],
)
def test_calls_are_rendered_as_the_model_writes_them(name, end):
    text = load(name).render([USER, CALL, RESULT], tools=[TOOL], add_generation_prompt=False)
    assert text.endswith(end)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_call_without_arguments_is_rendered_with_an_empty_object(arguments):
    function = {"name": "add", "arguments": arguments}
    call = {**CALL, "tool_calls": [{"id": "call00001", "function": function}]}
    for name, text in (("qwen3", '"arguments": {}}'), ("llama3", '"parameters": {}}')):
        assert text in load(name).render([USER, call], tools=[TOOL])


SYSTEM = {"role": "system", "content": "One."}
DEVELOPER = {"role": "developer", "content": "Two."}
OOPS = {**CALL, "tool_calls": [{"function": {"name": "add", "arguments": "oops"}}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "messages", "kwargs", "shown"),
    [
        ("llama3", [USER, OOPS], {}, '"parameters": "oops"}'),
        ("qwen3", [DEVELOPER, USER], {}, "<|im_start|>system\nTwo."),
        ("gptoss", [DEVELOPER, USER], {}, "<|start|>developer<|message|>Two."),
        ("mistral", [SYSTEM, DEVELOPER, USER], {}, "One.\n\nTwo."),
        ("gemma3", [SYSTEM, DEVELOPER, USER], {}, "One.\n\nTwo."),
        ("qwen3", [SYSTEM, DEVELOPER, USER], {}, "Two.<|im_end|>"),
        ("mistral", [USER, USER], {}, "[INST] hello\n\nhello[/INST]"),
        ("qwen3", [USER], {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ("gptoss", [USER], {"reasoning_effort": "high"}, "Reasoning: high"),
    ],
)
def test_messages_are_shown_in_the_form_of_the_template(name, messages, kwargs, shown):
    assert shown in load(name).render(messages, kwargs=kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_every_kind_of_history_is_shown(name):
    matrix = load(name).matrix
    assert {row: found for row, found in matrix.items() if found not in OUTCOMES} == {}


def test_every_kind_of_history_is_shown_by_the_demo_model():
    template = load_template(DEMO_MODEL)
    assert template is not None
    assert set(template.matrix.values()) <= set(OUTCOMES)


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be kind."},
    USER,
    {**CALL, "content": "I add.", "tool_calls": [*CALL["tool_calls"], *CALL["tool_calls"]]},
    RESULT,
    USER,
    {"role": "assistant", "content": ""},
    {"role": "system", "content": "Be quick."},
    {"role": "assistant", "content": "Yes."},
    {"role": "assistant", "content": "No."},
    {"role": "tool", "tool_call_id": "lost", "content": "3"},
    {"role": "critic", "content": "Bad."},
]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_turns_keep_their_beginning_when_others_follow(name):
    form = load(name)._tool_form.form
    whole = adapt(TALK, form).messages
    for length in range(3, len(TALK)):
        if TALK[length]["role"] == "tool":
            continue  # the results of calls in a row belong between them
        turns = adapt(TALK[:length], form).messages
        assert turns[:-1] == whole[: len(turns) - 1]


@pytest.mark.slow
def test_messages_that_a_template_cannot_show_have_a_warning():
    warnings: list[str] = []
    calls = [{**CALL["tool_calls"][0], "id": call_id} for call_id in ("a", "b")]
    results = [{**RESULT, "tool_call_id": call_id} for call_id in ("a", "b")]
    system = {"role": "system", "content": "Now."}
    template = load("llama3")
    text = template.render(
        [USER, {**CALL, "tool_calls": calls}, *results], tools=[TOOL], warnings=warnings
    )
    assert text.count('{"name": "add"') == 2
    assert warnings == [
        "messages[1] is shown one call after the other, because the chat template supports one "
        "call per turn"
    ]
    text = load("gptoss").render([USER, system], warnings=warnings)
    assert "<|start|>user<|message|>[system message]\nNow.<|end|>" in text
    assert warnings[1].startswith("messages[1] is shown as a user turn")


@pytest.mark.slow
@pytest.mark.parametrize(("level", "shown"), [("xhigh", "high"), ("none", "low"), ("low", "low")])
def test_nearest_reasoning_effort_is_used(level, shown):
    warnings: list[str] = []
    kwargs = {"reasoning_effort": level}
    assert f"Reasoning: {shown}" in load("gptoss").render([USER], kwargs=kwargs, warnings=warnings)
    assert bool(warnings) == (level != shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATE_NAMES)
@pytest.mark.parametrize("arguments", ['{"a": "cut', '["cut"]', '"cut"', "null"])
def test_arguments_of_any_kind_are_shown(name, arguments):
    function = {"name": "add", "arguments": arguments}
    call = {**CALL, "tool_calls": [{"id": "call00001", "function": function}]}
    text = load(name).render([USER, call, RESULT], tools=[TOOL])
    assert text.count("cut") == arguments.count("cut")


@pytest.mark.slow
def test_reasoning_is_passed_by_the_name_that_the_template_reads():
    call = {**CALL, "reasoning": "because"}
    text = load("gptoss").render([USER, call], tools=[TOOL])
    assert "<|channel|>analysis<|message|>because<|end|>" in text
    assert "<think>\nbecause\n</think>" in load("qwen3").render([USER, call])
    with_content = {**call, "content": "I add."}
    text = load("gptoss").render([USER, with_content])
    assert "because" in text
    assert text.count("I add.") == 1


def test_long_call_ids_are_shortened_for_mistral():
    calls = [{**CALL["tool_calls"][0], "id": "call_1-of-another-server"}]
    result = {**RESULT, "tool_call_id": "call_1-of-another-server"}
    text = load("mistral").render([USER, {**CALL, "tool_calls": calls}, result], tools=[TOOL])
    ids = re.findall(r'id": "(\w+)"', text)
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert len(ids[0]) == 9


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_tools_are_in_the_system_message_if_the_template_reads_them_there(system):
    source = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
        "{% if 'tools' in message %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}"
        "{% endfor %}"
    )
    template = make_template({"default": source}, TOKENS)
    tools = '<|tool|>[{"name": "add", "parameters": {"type": "object"}}]<|/tool|>'
    content = "".join(message["content"] for message in system)
    assert (
        template.render([*system, USER], tools=[TOOL]) == f"<|system|>{content}{tools}<|user|>hello"
    )
    assert "tool" not in template.render([*system, USER])


@pytest.mark.slow
def test_content_format_overrides_the_detected_form():
    text = load("gemma3", "string").render([USER])
    assert "hello" not in text
    assert "hello" in load("gemma3", "openai").render([USER])


def test_given_messages_are_not_changed():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    for content, shown in (([{"type": "text", "text": "a"}], "a"), (["a", image], ["a", image])):
        message = {**CALL, "tool_calls": [], "content": list(content)}
        (adapted,) = adapt([message], replace(TemplateForm(), argument_objects=True)).messages
        assert message == {**CALL, "tool_calls": [], "content": content}
        assert adapted == {"role": "assistant", "content": shown}
    assert adapt([USER | {"extra": 1}], TemplateForm()).messages == [USER | {"extra": 1}]
