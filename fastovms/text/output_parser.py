"""The parser of one request's answer."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.text.output import OutputParser, PlainParser
from fastovms.text.reasoning import ReasoningFormat
from fastovms.text.scanner import Scanner, Steps
from fastovms.text.steps import Output, StepsParser
from fastovms.text.tools import Tool, ToolFormat


def output_parser(
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    *,
    prompt: str,
    tools: Sequence[Tool],
) -> OutputParser:
    """A new parser for one sample.

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

    def parse(scan: Scanner, out: Output) -> Steps[None]:
        if reasoning_format is not None:
            yield from reasoning_format.parse(scan, out, is_inside)
        if tool_format is not None:
            yield from tool_format.parse(scan, out, tools)
        else:
            yield from scan.rest(out.content)

    return StepsParser(parse)


def kept_tags(
    tool_format: ToolFormat | None, reasoning_format: ReasoningFormat | None
) -> frozenset[str]:
    """What must not be skipped in the decoded text, though it may be special tokens."""
    formats = (tool_format, reasoning_format)
    return frozenset(tag for found in formats if found is not None for tag in found.tags)


def opens_reasoning(reasoning_format: ReasoningFormat, prompt: str) -> bool:
    """Whether the prompt's end has opened reasoning."""
    return prompt.rstrip().endswith(reasoning_format.begin)
