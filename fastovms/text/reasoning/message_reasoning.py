"""Defines the formats of gpt-oss and Onyx, which write reasoning in messages of its own."""

from __future__ import annotations

from fastovms.grammar_tree import Tag, Until, in_order, optional
from fastovms.text.reasoning.reasoning_format import ReasoningFormat
from fastovms.text.tools.named_formats import gptoss
from fastovms.text.tools.xml_formats import onyx

_GPTOSS_BEGIN = in_order(Tag(gptoss.CHANNEL), "analysis", Tag(gptoss.MESSAGE))
_GPTOSS_REST = in_order(Until(gptoss.END), Tag(gptoss.START), "assistant")
_ONYX_BEGIN = in_order(" to=self", Tag(onyx.MESSAGE))
_ONYX_REST = in_order(Until(onyx.END_MESSAGE), optional(in_order(Tag(onyx.START), "assistant")))

GPTOSS = ReasoningFormat(
    "gptoss",
    tags=gptoss.TAGS,
    parse=gptoss.MESSAGES,
    begin=f"{gptoss.CHANNEL}analysis{gptoss.MESSAGE}",
    before_answer=optional(in_order(_GPTOSS_BEGIN, _GPTOSS_REST)),
    rest=_GPTOSS_REST,
    open_answer=in_order(Tag(gptoss.CHANNEL), "final", Tag(gptoss.MESSAGE)),
    aliases=("openai_gptoss",),
    marks=((gptoss.CHANNEL,),),
)
ONYX = ReasoningFormat(
    "onyx",
    tags=onyx.TAGS,
    parse=onyx.MESSAGES,
    begin=f"to=self{onyx.MESSAGE}",
    before_answer=optional(in_order(_ONYX_BEGIN, _ONYX_REST)),
    rest=_ONYX_REST,
    open_answer=in_order(" to=user", Tag(onyx.MESSAGE)),
    marks=(onyx.TAGS,),
)
