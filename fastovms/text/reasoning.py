"""Formats of reasoning in models' answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastovms.grammar_tree import (
    EMPTY,
    FirstTag,
    InOrder,
    Literal,
    Node,
    Regex,
    Tag,
    Until,
    after_first_tag,
    in_order,
    one_of,
    optional,
)
from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.tools.tool_format import FormatRow, Formats, first_shown_format

Tags = tuple[str, str]
"""A pair of tags that begin and end a section."""


@dataclass(frozen=True, slots=True)
class ReasoningMarkup:
    """The reasoning tags of a model family.

    Attributes:
        pairs: pairs of begin and end tag. If the prompt has begun reasoning, the first pair
            applies. If a tag is a prefix of another one, the longer one must come first.
        answer: the optional tags around the answer.
        anywhere: whether the tags are markup anywhere in the text, even unpaired; otherwise
            reasoning can come only first, followed by the answer.
    """

    pairs: tuple[Tags, ...]
    answer: Tags | None = None
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The reasoning format of a model family.

    Attributes:
        name: the name for `--reasoning-parser`.
        tags: the markup. Tags that are special tokens of the vocabulary must be kept in the decoded
            text.
        parse: the reasoning tags; or the message format in which reasoning is a kind of message.
        begin: the text that opens reasoning. If a prompt ends with it, the answer begins within
            reasoning.
        before_answer: the grammar of optional reasoning before a constrained answer.
        rest: the grammar of the rest of reasoning, for an answer that begins within reasoning.
        end: the text with which a prompt ends reasoning, if answers otherwise begin within
            reasoning; None = they do not.
        open_answer: the grammar of the markup between reasoning and content.
        closing: the text that ends reasoning in a message format; "" = the end tag.
    """

    name: str
    tags: tuple[str, ...]
    parse: ReasoningMarkup | HeadedMessages
    begin: str
    before_answer: Node
    rest: Node
    end: str | None = None
    open_answer: Node = EMPTY
    closing: str = ""

    @property
    def sections(self) -> tuple[Tags, ...]:
        """The pairs of texts that begin and end a section of reasoning; the pair that a prompt may
        begin comes first."""
        if isinstance(self.parse, ReasoningMarkup):
            return self.parse.pairs
        return ((self.begin, self.closing),)

    @property
    def answer_opening(self) -> str:
        """The markup between reasoning and content, as a string."""
        node = self.open_answer
        parts = node.items if isinstance(node, InOrder) else (node,)
        return "".join(part.text for part in parts if isinstance(part, Literal | Tag))


THINK: Tags = ("<think>", "</think>")

_BLANK_LINES = Regex(r"\n{0,2}")
"""The line breaks between reasoning and a constrained answer. Without a limit, some models would
write only line breaks."""


def think_format(
    name: str,
    pairs: Sequence[Tags] = (THINK,),
    *,
    answer: Tags | None = None,
    anywhere: bool = False,
    is_assumed: bool = False,
    aliases: tuple[str, ...] = (),
    marks: tuple[tuple[str, ...], ...] = (),
) -> FormatRow:
    """Returns a table row for a format with reasoning between tags; see `ReasoningMarkup`.
    `is_assumed` is whether answers begin within reasoning unless the prompt has ended it."""
    begin, end = pairs[0]
    sections = one_of(*[in_order(Tag(its_begin), Until(its_end)) for its_begin, its_end in pairs])
    found = ReasoningFormat(
        name,
        tags=tuple(dict.fromkeys(tag for pair in (*pairs, answer or ()) for tag in pair)),
        parse=ReasoningMarkup(tuple(pairs), answer, anywhere),
        begin=begin.rstrip(),
        before_answer=optional(in_order(sections, _BLANK_LINES)),
        rest=in_order(Until(end), _BLANK_LINES),
        end=end if is_assumed else None,
        open_answer=Tag(answer[0]) if answer and anywhere and answer[0] != end else EMPTY,
    )
    return FormatRow(name, found, marks, aliases)


def reasoning_before_calls(
    markup: ReasoningMarkup, calls: Node, *, is_inside: bool, is_required: bool, is_strict: bool
) -> Node:
    """Returns the grammar of tool calls, optionally after reasoning.

    If calls must follow their schemas, a tool-call tag within reasoning ends the reasoning.
    Otherwise the tag may be an example, and reasoning is free text.

    Args:
        calls: the grammar of the calls.
        is_inside: whether the answer begins within reasoning.
        is_required: whether calls are required.
        is_strict: whether calls must follow their schemas.
    """
    begun = after_first_tag(calls) if is_required or is_strict else None

    def section(end: str) -> Node:
        cases = [(end, in_order(_BLANK_LINES, calls)), *([begun] if begun else [])]
        return FirstTag(tuple(cases), is_required)

    if is_inside:
        return section(markup.pairs[0][1])
    opened = [in_order(Tag(begin), section(end)) for begin, end in markup.pairs]
    return one_of(*opened, calls)


__all__ = [
    "REASONING_FORMATS",
    "REASONING_FORMAT_ALIASES",
    "ReasoningFormat",
    "detect_reasoning_format",
]

# Granite 3.2 marks reasoning by fixed sentences, 3.3 by tags, with the answer between other tags.
_GRANITE = (
    THINK,
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
)

_BY_RANK: Final = (
    FormatRow("gptoss", "named_formats.GPTOSS_REASONING", (("<|channel|>",),), ("openai_gptoss",)),
    FormatRow(
        "onyx",
        "xml_formats.ONYX_REASONING",
        (("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),),
        ("muse_glimmer",),
    ),
    # The word after the token names the type of the channel; some answers omit it.
    think_format(
        "gemma4",
        (("<|channel>thought\n", "<channel|>"), ("<|channel>", "<channel|>")),
        anywhere=True,
        marks=(("<|tool_call>call:",), ("<|channel>thought",)),
    ),
    think_format(
        "apertus",
        (("<|inner_prefix|>", "<|inner_suffix|>"),),
        anywhere=True,
        marks=(("<|inner_prefix|>",),),
    ),
    think_format(
        "apriel",
        (("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
        answer=("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
        anywhere=True,
        marks=(("[BEGIN FINAL RESPONSE]",),),
    ),
    think_format(
        "command_r7b",
        (("<|START_THINKING|>", "<|END_THINKING|>"),),
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        anywhere=True,
        aliases=("cohere_command3", "cohere_command4"),
        marks=(("<|START_THINKING|>",),),
    ),
    think_format("seed_oss", (("<seed:think>", "</seed:think>"),), marks=(("<seed:think>",),)),
    think_format(
        "hunyuan_a13b", answer=("<answer>", "</answer>"), marks=(("<think>", "<answer>"),)
    ),
    think_format("minicpm5", marks=(('<param name="',),)),
    think_format(
        "lfm2", marks=(("<|tool_call_start|>", "message.thinking"), ("keep_past_thinking",))
    ),
    think_format(
        "granite",
        _GRANITE,
        answer=("<response>", "</response>"),
        marks=(("Here is my thought process:",), ("<think></think>", "<response></response>")),
    ),
    think_format(
        "ernie45", answer=("<response>", "</response>"), marks=(("<response>", "</think>"),)
    ),
    think_format("mistral", (("[THINK]", "[/THINK]"),), marks=(("[THINK]",),)),
    think_format("deepseek", aliases=("deepseek_v3",), marks=(("<｜Assistant｜>", "<think>"),)),
    think_format(
        "qwen3",
        aliases=(
            "glm45",
            "glm47",
            "hy_v3",
            "kimi_k2",
            "mimo",
            "minimax_m2",
            "nemotron_v3",
            "olmo3",
            "step3",
            "step3p5",
        ),
        marks=(("<think>",), ("content.split('</think>')",)),
    ),
    think_format("deepseek_r1", is_assumed=True),
)
"""The formats in the order in which a template is searched for their marks; marks that other
formats share come last."""

REASONING_FORMATS: Final[Formats[ReasoningFormat]] = Formats(_BY_RANK)
REASONING_FORMAT_ALIASES: Final = REASONING_FORMATS.aliases
"""The names of the formats by other servers' names."""


def detect_reasoning_format(template: str) -> ReasoningFormat | None:
    """Returns the reasoning format that a chat template's source shows; the first match wins; None
    = none."""
    name = first_shown_format(_BY_RANK, template)
    return None if name is None else REASONING_FORMATS[name]
