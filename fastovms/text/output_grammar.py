"""Writes the grammar of one request's answer: reasoning first, then calls or what the request
wants."""

from __future__ import annotations

from dataclasses import replace

from fastovms.grammar_tree import EMPTY, Answer, Node, in_order, one_of
from fastovms.params import Grammar, GrammarKind
from fastovms.text.output_parser import opens_reasoning
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.reasoning.reasoning_format import ThoughtTags
from fastovms.text.reasoning.think import thoughts_before_calls
from fastovms.text.tools import CallChoice, ToolFormat


def call_grammar(
    tool_format: ToolFormat,
    reasoning_format: ReasoningFormat | None,
    choice: CallChoice,
    *,
    prompt: str,
) -> Grammar:
    """Returns what keeps the arguments of calls to their schemas. Where calls are required, the
    answer is calls that validate. Else it is free until a call begins; such a grammar may be left
    out if it turns out not to compile.

    Raises:
        InvalidField: a schema cannot be kept to in the model's format of calls.
    """
    calls = tool_format.grammar(choice)
    if reasoning_format is None:
        tree = calls
    elif isinstance(reasoning_format.parse, ThoughtTags):
        tree = thoughts_before_calls(
            reasoning_format.parse,
            calls,
            is_inside=opens_reasoning(reasoning_format, prompt),
            is_required=choice.required,
            is_strict=choice.strict,
        )
    else:
        # Where nothing has to be, messages of every kind may come.
        tree = in_order(_reasoning(reasoning_format, prompt) if choice.required else EMPTY, calls)
    return Grammar(GrammarKind.CALLS, "", "tools", tree)


def answer_grammar(
    grammar: Grammar,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    calls: tuple[ToolFormat, CallChoice] | None = None,
) -> Grammar:
    """Returns a grammar that constrains the answer and leaves the reasoning before it free.

    Args:
        calls: they may be made in place of the answer.
    """
    if reasoning_format is None and calls is None:
        return grammar
    answer: Node = Answer()
    if reasoning_format is not None:
        answer = in_order(reasoning_format.open_answer, answer)
    if calls is not None:
        tool_format, choice = calls
        answer = one_of(answer, tool_format.grammar(replace(choice, required=True)))
    return replace(grammar, tree=in_order(_reasoning(reasoning_format, prompt), answer))


def _reasoning(reasoning_format: ReasoningFormat | None, prompt: str) -> Node:
    if reasoning_format is None:
        return EMPTY
    is_inside = opens_reasoning(reasoning_format, prompt)
    return reasoning_format.rest if is_inside else reasoning_format.before_answer
