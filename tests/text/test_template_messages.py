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
from fastovms.text.template_messages import ONE_BY_ONE, TemplateForm, adapt
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
def test_calls_without_arguments(arguments):
    function = {"name": "add", "arguments": arguments}
    call = {**CALL, "tool_calls": [{"id": "call00001", "function": function}]}
    for name, text in (("qwen3", '"arguments": {}}'), ("llama3", '"parameters": {}}')):
        assert text in load(name).render([USER, call], tools=[TOOL])


def test_arguments_that_are_no_object_stay_text():
    function = {"name": "add", "arguments": "oops"}
    call = {**CALL, "tool_calls": [{"function": function}]}
    assert '"parameters": "oops"}' in load("llama3").render([USER, call], tools=[TOOL])


@pytest.mark.slow
def test_forms_of_templates():
    forms = {name: load(name)._tool_form.form for name in ("llama3", "gptoss", "mistral", "gemma3")}
    assert forms["llama3"].argument_objects
    assert (forms["llama3"].calls, forms["gptoss"].calls) == (ONE_BY_ONE, ONE_BY_ONE)
    assert forms["gptoss"].reasoning == "thinking"
    assert forms["gptoss"].efforts == ("low", "medium", "high")
    assert forms["mistral"].joins_users
    assert forms["mistral"].short_ids
    assert forms["gemma3"].content_parts
    assert forms["gemma3"].iterates_parts


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_every_history_of_the_matrix_is_shown(name):
    matrix = load(name).matrix
    assert {row: found for row, found in matrix.items() if found not in OUTCOMES} == {}


def test_every_history_of_the_matrix_is_shown_by_the_demo_model():
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
def test_parts_that_a_template_cannot_show_are_warned_of():
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
        "messages[1] is shown one call after the other, as the chat template takes one"
    ]
    text = load("gptoss").render([USER, system], warnings=warnings)
    assert "<|start|>user<|message|>[system message]\nNow.<|end|>" in text
    assert warnings[1].startswith("messages[1] is shown as a user turn")


@pytest.mark.slow
@pytest.mark.parametrize(("level", "shown"), [("xhigh", "high"), ("none", "low"), ("low", "low")])
def test_the_nearest_effort_is_taken(level, shown):
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
def test_the_developer_is_the_system_where_it_is_unknown():
    developer = {"role": "developer", "content": "Be brief."}
    assert load("qwen3").render([developer, USER]).startswith("<|im_start|>system\nBe brief.")
    assert "<|start|>developer<|message|>Be brief." in load("gptoss").render([developer, USER])


@pytest.mark.slow
def test_several_system_messages_are_merged_where_one_would_be_lost():
    messages = [{"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}]
    assert "One.\n\nTwo." in load("mistral").render([*messages, USER])
    assert "One.\n\nTwo." in load("gemma3").render([*messages, USER])
    assert "Two.<|im_end|>" in load("qwen3").render([*messages, USER])


@pytest.mark.slow
def test_reasoning_has_the_name_that_the_template_reads():
    call = {**CALL, "reasoning": "because"}
    text = load("gptoss").render([USER, call], tools=[TOOL])
    assert "<|channel|>analysis<|message|>because<|end|>" in text
    assert "<think>\nbecause\n</think>" in load("qwen3").render([USER, call])
    with_content = {**call, "content": "I add."}
    text = load("gptoss").render([USER, with_content])
    assert "because" in text
    assert text.count("I add.") == 1


def test_ids_are_shortened_where_they_have_to_be():
    calls = [{**CALL["tool_calls"][0], "id": "call_1-of-another-server"}]
    result = {**RESULT, "tool_call_id": "call_1-of-another-server"}
    text = load("mistral").render([USER, {**CALL, "tool_calls": calls}, result], tools=[TOOL])
    ids = re.findall(r'id": "(\w+)"', text)
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert len(ids[0]) == 9


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_tools_go_into_the_system_message_where_they_are_read_there(system):
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
def test_thinking_is_a_matter_of_arguments():
    template = load("qwen3")
    text = template.render([USER], kwargs={"enable_thinking": False})
    assert text.endswith("<think>\n\n</think>\n\n")
    assert "Reasoning: high" in load("gptoss").render([USER], kwargs={"reasoning_effort": "high"})


@pytest.mark.slow
def test_the_form_of_content_can_be_given():
    text = load("gemma3", "string").render([USER])
    assert "hello" not in text
    assert "hello" in load("gemma3", "openai").render([USER])


@pytest.mark.slow
def test_turns_are_merged_where_the_template_wants_them_to_alternate():
    assert "[INST] hello\n\nhello[/INST]" in load("mistral").render([USER, USER])


def test_messages_are_not_changed():
    message = {**CALL, "tool_calls": [], "content": [{"type": "text", "text": "a"}]}
    copy = {**message, "content": list(message["content"])}
    (adapted,) = adapt([message], replace(TemplateForm(), argument_objects=True)).messages
    assert message == copy
    assert adapted == {"role": "assistant", "content": "a"}
    assert adapt([USER | {"extra": 1}], TemplateForm()).messages == [USER | {"extra": 1}]


def test_parts_that_are_no_text_stay():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    (adapted,) = adapt([{"role": "user", "content": ["a", image]}], TemplateForm()).messages
    assert adapted["content"] == ["a", image]
