"""Defines formats of reasoning between two tags, before the answer: `<think>why</think>answer`."""

from __future__ import annotations

from collections.abc import Sequence

from fastovms.grammar_tree import (
    EMPTY,
    FirstTag,
    Node,
    Regex,
    Tag,
    Until,
    after_first_tag,
    in_order,
    one_of,
    optional,
)
from fastovms.text.reasoning.reasoning_format import ReasoningFormat, Tags, ThoughtTags

THINK: Tags = ("<think>", "</think>")

_BLANK_LINES = Regex(r"\n{0,2}")
"""The blank lines between reasoning and a constrained answer. Without a bound some models write
nothing else."""


def think_format(
    name: str,
    pairs: Sequence[Tags] = (THINK,),
    *,
    answer: Tags | None = None,
    anywhere: bool = False,
    is_assumed: bool = False,
    aliases: tuple[str, ...] = (),
    marks: tuple[tuple[str, ...], ...] = (),
) -> ReasoningFormat:
    """Returns a format of reasoning between tags, of which `ThoughtTags` tells more.

    Args:
        is_assumed: whether answers are reasoning from the beginning, unless the prompt has ended
            it.
    """
    begin, end = pairs[0]
    thoughts = one_of(*[in_order(Tag(its_begin), Until(its_end)) for its_begin, its_end in pairs])
    return ReasoningFormat(
        name,
        tags=tuple(dict.fromkeys(tag for pair in (*pairs, answer or ()) for tag in pair)),
        parse=ThoughtTags(tuple(pairs), answer, anywhere),
        begin=begin.rstrip(),
        before_answer=optional(in_order(thoughts, _BLANK_LINES)),
        rest=in_order(Until(end), _BLANK_LINES),
        end=end if is_assumed else None,
        open_answer=Tag(answer[0]) if answer and anywhere and answer[0] != end else EMPTY,
        aliases=aliases,
        marks=marks,
    )


def thoughts_before_calls(
    thoughts: ThoughtTags, calls: Node, *, is_inside: bool, is_required: bool, is_strict: bool
) -> Node:
    """Returns the grammar of calls that a thought may come before.

    A call's tag within a thought ends it where calls have to follow their schemas: else it may be
    one that the model writes about, and the thought is free.

    Args:
        calls: their grammar.
        is_inside: whether the answer begins within a thought.
        is_required: whether calls must come.
        is_strict: whether calls have to follow their schemas.
    """
    begun = after_first_tag(calls) if is_required or is_strict else None

    def thought(end: str) -> Node:
        cases = [(end, in_order(_BLANK_LINES, calls)), *([begun] if begun else [])]
        return FirstTag(tuple(cases), is_required)

    if is_inside:
        return thought(thoughts.pairs[0][1])
    opened = [in_order(Tag(begin), thought(end)) for begin, end in thoughts.pairs]
    return one_of(*opened, calls)
