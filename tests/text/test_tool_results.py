"""Tests of `fastovms/text/tool_results.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fastovms.text.template_files import make_template
from fastovms.text.template_messages import AS_TEXT, ONE_BY_ONE, TemplateForm, adapt
from fastovms.text.tool_results import NO_RESULT, Message, fault_of_results

PLAIN = """
{%- for m in messages %}{{ m.role }}:{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments }}>{% endfor -%}
|{% endfor %}"""
"""A template that shows no ids."""

USER = {"role": "user", "content": "hi"}


def calls(*ids: str | None) -> Message:
    made = [
        {"type": "function", "function": {"name": f"f_{call_id}", "arguments": "{}"}}
        | ({} if call_id is None else {"id": call_id})
        for call_id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call_id: str | None, text: str | None = None) -> Message:
    message = {"role": "tool", "content": text or f"of {call_id}"}
    return message if call_id is None else {**message, "tool_call_id": call_id}


def shown(messages: Sequence[Message]) -> str:
    return make_template({"default": PLAIN}, {}).render(list(messages))


CASES = {
    "in order": ([result("a"), result("b")], "tool:of a|tool:of b|"),
    "in another order": ([result("b"), result("a")], "tool:of a|tool:of b|"),
    "first missing": ([result("b")], f"tool:{NO_RESULT}|tool:of b|"),
    "last missing": ([result("a")], f"tool:of a|tool:{NO_RESULT}|"),
    "none": ([], ""),
    "without ids": ([result(None, "1"), result(None, "2")], "tool:1|tool:2|"),
    "one without an id": ([result("b"), result(None, "1")], "tool:1|tool:of b|"),
    "an unknown id": (
        [result("x"), result("b"), result("a")],
        "tool:of a|tool:of b|user:Result of the call of a function:\nof x|",
    ),
    "the only unknown id": ([result("b"), result("x")], "tool:of x|tool:of b|"),
    "an id twice": (
        [result("a", "1"), result("b"), result("a", "2")],
        "tool:1|tool:of b|user:Result of the call of f_a:\n2|",
    ),
}


@pytest.mark.parametrize(("results", "text"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("rest", [[], [{"role": "assistant", "content": "so"}, USER]])
def test_results_are_shown_in_the_order_of_the_calls(
    results: list[Message], text: str, rest: list[Message]
) -> None:
    after = "".join(f"{message['role']}:{message['content']}|" for message in rest)
    assert shown([USER, calls("a", "b"), *results, *rest]) == (
        f"user:hi|assistant:<f_a {{}}><f_b {{}}>|{text}{after}"
    )


def test_results_of_calls_without_ids_keep_their_order() -> None:
    messages = [USER, calls(None, None), result("x"), result("y")]
    assert shown(messages).endswith("|tool:of x|tool:of y|")


def test_result_of_an_earlier_turn_is_named() -> None:
    messages = [USER, calls("a"), calls("b", "c"), result("a"), result("c"), result("b")]
    assert shown(messages).endswith("|tool:of b|tool:of c|user:Result of the call of f_a:\nof a|")


@pytest.mark.parametrize("form", [TemplateForm(calls=ONE_BY_ONE), TemplateForm(calls=AS_TEXT)])
def test_missing_result_is_marked_in_every_form_of_calls(form: TemplateForm) -> None:
    adapted = adapt([USER, calls("a", "b", "c"), result("c"), result("a")], form)
    told = [m["content"] for m in adapted.messages if m["content"] and "of" in m["content"]]
    texts = "\n".join(told)
    assert texts.index("of a") < texts.index(NO_RESULT) < texts.index("of c")
    [warning] = [one for one in adapted.warnings if NO_RESULT in one]
    assert warning.startswith("messages[1] has a call without a result")


@pytest.mark.parametrize(
    ("results", "fault"),
    [
        ([result("a"), result("b")], None),
        ([result("b")], None),
        ([result(None), result(None)], None),
        ([result("a"), result("a")], (3, "is also the id of another result")),
        ([result("b"), result("x")], (3, "is not the id of a call before it")),
    ],
)
def test_results_without_their_call_are_a_fault(
    results: list[Message], fault: tuple[int, str] | None
) -> None:
    assert fault_of_results([USER, calls("a", "b"), *results]) == fault
    assert fault_of_results([USER, *results]) is None, "the calls may have been left out"


def test_calls_with_one_id_have_as_many_results() -> None:
    messages = [USER, calls("a", "a"), result("a", "1"), result("a", "2")]
    assert fault_of_results(messages) is None
    assert shown(messages).endswith("|tool:1|tool:2|")
