"""The grammar of one request's answer: reasoning first, then calls or what the request wants."""

from __future__ import annotations

from dataclasses import replace

from fastovms.params import Grammar, GrammarKind
from fastovms.text.output_parser import opens_reasoning
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.scanning.headed_messages import MessageForm
from fastovms.text.scanning.rules import Rules
from fastovms.text.tools import CallChoice, ToolFormat


def call_grammar(
    tool_format: ToolFormat,
    reasoning_format: ReasoningFormat | None,
    choice: CallChoice,
    *,
    prompt: str,
) -> Grammar:
    """What keeps the arguments of calls to their schemas.

    Where calls are required, the answer is calls that validate. Else it is free until a call
    begins; such a grammar may be left out if it turns out not to compile.

    Raises:
        InvalidField: a schema cannot be kept to in the model's format of calls.
    """
    rules = Rules()
    # Where nothing has to be, messages of every kind may come.
    is_free = isinstance(tool_format.parse, MessageForm) and not choice.required
    before = "" if is_free else _reasoning(rules, reasoning_format, prompt)
    return Grammar(
        GrammarKind.TAGGED_RULES,
        rules.source(f"{before} {tool_format.rules(rules, choice)}"),
        param="tools",
    )


def answer_grammar(
    grammar: Grammar,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    calls: tuple[ToolFormat, CallChoice] | None = None,
) -> Grammar:
    """A grammar that constrains the answer and leaves the reasoning before it free.

    Args:
        calls: they may be made in place of the answer.
    """
    if reasoning_format is None and calls is None:
        return grammar
    rules = Rules()
    before = _reasoning(rules, reasoning_format, prompt)
    answer = "@answer"
    if reasoning_format is not None and reasoning_format.open_answer is not None:
        answer = f"{reasoning_format.open_answer(rules)} {answer}"
    if calls is not None:
        tool_format, choice = calls
        answer = f"({answer} | {tool_format.rules(rules, replace(choice, required=True))})"
    return replace(grammar, frame=rules.source(f"{before} {answer}"))


def _reasoning(rules: Rules, reasoning_format: ReasoningFormat | None, prompt: str) -> str:
    if reasoning_format is None:
        return ""
    return reasoning_format.rules(rules, opens_reasoning(reasoning_format, prompt))
