"""Defines formats of reasoning between two tags, before the answer: `<think>why</think>answer`."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import Regex, Tag, Until, in_order, one_of, optional
from fastovms.text.reasoning.reasoning_format import Parse, ReasoningFormat
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner

Tags = tuple[str, str]
"""A tag that begins reasoning and one that ends it."""

THINK: Tags = ("<think>", "</think>")

_BLANK_LINES = Regex(r"\n{0,2}")
"""The blank lines between reasoning and a constrained answer. Without a bound some models write
nothing else."""


def think_format(
    name: str,
    pairs: Sequence[Tags] = (THINK,),
    *,
    answer: Tags | None = None,
    is_assumed: bool = False,
) -> ReasoningFormat:
    """Returns a format of reasoning between tags.

    Args:
        pairs: the tags that reasoning may stand between; where a prompt has begun it, the first
            pair.
        answer: the tags that the answer behind reasoning may stand between.
        is_assumed: whether answers are reasoning from the beginning, unless the prompt has ended
            it.
    """
    begin, end = pairs[0]
    thoughts = one_of(*[in_order(Tag(its_begin), Until(its_end)) for its_begin, its_end in pairs])
    return ReasoningFormat(
        name,
        tags=tuple(tag for pair in (*pairs, *([answer] if answer else [])) for tag in pair),
        parse=_parser(pairs, answer),
        begin=begin,
        before_answer=optional(in_order(thoughts, _BLANK_LINES)),
        rest=in_order(Until(end), _BLANK_LINES),
        end=end if is_assumed else None,
    )


def _parser(pairs: Sequence[Tags], answer: Tags | None) -> Parse:
    def parse(scan: Scanner, out: PieceCollector, is_inside: bool) -> Incremental[None]:
        """Reads reasoning, which comes first or not at all. Without an end, all is reasoning."""
        space = yield from scan.space()
        end = pairs[0][1] if is_inside else None
        for begin, its_end in pairs:
            if (yield from scan.take(begin)):
                end = its_end
                break
        if end is None:
            out.content(space)
            return
        out.begin_reasoning()
        yield from scan.until((end,), out.reasoning)
        out.end_reasoning()
        if answer is not None:
            space = yield from scan.space()
            if (yield from scan.take(answer[0])):
                out.answer_end = answer[1]
            else:
                out.content(space)

    return parse
