"""Makes the parser of one request's answer, which finds reasoning and calls in it; says whether its
prompt opens reasoning, and which formats and tags go together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastovms.errors import ConfigurationError
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.reasoning.reasoning_format import ThoughtTags
from fastovms.text.scanning.headed_messages import HeadedMessages, parse_messages
from fastovms.text.scanning.incremental_parser import IncrementalParser
from fastovms.text.scanning.output import OutputParser, PlainParser
from fastovms.text.tagged_answer import TaggedAnswer
from fastovms.text.tools import Tool, ToolFormat
from fastovms.text.tools.tool_format import TaggedCalls

_LOOK_BACK = 200
"""How many characters of a prompt's end tell whether reasoning has been opened."""


def output_parser(
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    tools: Sequence[Tool],
) -> OutputParser:
    """Returns a new parser for one sample.

    Args:
        tool_format: how the model writes calls; None = they are content.
        reasoning_format: how it sets thoughts apart; None = they are content.
        prompt: the rendered prompt. Where its end has opened reasoning, the answer begins within.
        tools: what the request lets the model call. Without any, calls are content.
    """
    if not tools:
        tool_format = None
    if tool_format is None and reasoning_format is None:
        return PlainParser()
    is_inside = reasoning_format is not None and opens_reasoning(reasoning_format, prompt)
    calls = tool_format.parse if tool_format is not None else None
    thoughts = reasoning_format.parse if reasoning_format is not None else None
    for form in (calls, thoughts):
        if isinstance(form, HeadedMessages):
            parse = partial(
                parse_messages,
                form=form,
                tools=tools if tool_format is not None else None,
                tells_reasoning=reasoning_format is not None,
                is_inside=is_inside,
            )
            return IncrementalParser(parse)
    answer = TaggedAnswer(
        calls if isinstance(calls, TaggedCalls) else None,
        thoughts if isinstance(thoughts, ThoughtTags) else None,
        tools,
        is_inside,
    )
    return IncrementalParser(answer.parse)


def check_formats(tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None) -> None:
    """Checks that a format of calls and one of reasoning can stand in one answer.

    Raises:
        ConfigurationError: no model writes both.
    """
    if tool_format is None or reasoning_format is None:
        return
    forms = [found.parse for found in (tool_format, reasoning_format)]
    if forms[0] is not forms[1] and any(isinstance(form, HeadedMessages) for form in forms):
        raise ConfigurationError(
            f"the tool parser {tool_format.name} and the reasoning parser {reasoning_format.name} "
            "do not go together"
        )


def kept_tags(
    tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None
) -> frozenset[str]:
    """Returns the texts that must not be skipped in the decoded text, though they may be special
    tokens."""
    formats = (tool_format, reasoning_format)
    return frozenset(tag for found in formats if found is not None for tag in found.tags)


def leaves_reasoning_open(reasoning_format: ReasoningFormat, answer: str) -> bool:
    """Returns whether the beginning of an answer, which the model is to continue, ends within
    reasoning."""
    at = answer.rfind(reasoning_format.begin)
    form = reasoning_format.parse
    ends = (
        [end for _, end in form.pairs] if isinstance(form, ThoughtTags) else reasoning_format.tags
    )
    rest = answer[at + len(reasoning_format.begin) :]
    return at >= 0 and not any(end in rest for end in ends)


def opens_reasoning(reasoning_format: ReasoningFormat, prompt: str) -> bool:
    """Returns whether an answer to the prompt begins within reasoning."""
    prompt = prompt[-_LOOK_BACK:].rstrip()
    if reasoning_format.end is not None:
        return not prompt.endswith(reasoning_format.end)
    return prompt.endswith(reasoning_format.begin)
