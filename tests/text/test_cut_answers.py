"""Answers that end anywhere: markup that the end of the text cuts is not content."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS, ReasoningFormat, ThoughtTags
from fastovms.text.scanning import CallArguments, CallBegin, CallEnd, Content, Piece, Reasoning
from fastovms.text.told_tools import written_call
from fastovms.text.tools import TOOL_FORMATS, ToolFormat
from tests.text.tools import family_calls as family
from tests.text.tools.checks import SHOP

CALL = ("search", {"query": "a <b> [c]", "limit": 12})
ANSWERS = {
    "gptoss": [
        "<|channel|>analysis<|message|>Why not.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
        '<|constrain|>json<|message|>{"query":"x"}<|call|>',
        "<|channel|>analysis<|message|>Why.<|end|><|start|>assistant<|channel|>final<|message|>"
        "The answer is 4.<|return|>",
    ],
    "onyx": [
        " to=self<|message|>Why not.<|eom|><|start|>assistant to=user<|message|>Let me look.<|eom|>"
        + "<|start|>assistant"
        + family.onyx(CALL),
    ],
    "functionary_v32": [
        f"all\nLet me look.>>>{written_call(TOOL_FORMATS['functionary_v32'], *CALL)}"
    ],
    "llama3": [family.llama(CALL, CALL), f"<|python_tag|>{family.llama(CALL)}"],
    "mistral": [family.objects(CALL, CALL)],
    "qwen3coder": [family.qwen_coder(CALL, CALL)],
    "hermes3": [family.hermes(CALL, CALL)],
    "glm45": [family.glm(CALL, CALL), family.glm(CALL, line="")],
}


def texts_of(tool_format: ToolFormat) -> list[str]:
    """Answers as models of the family write them: a call, text before a call, several calls."""
    call = written_call(tool_format, *CALL)
    texts = [call, *ANSWERS.get(tool_format.name, ())]
    if not isinstance(tool_format.parse, HeadedMessages):
        begins = tool_format.parse.begins
        if any(call.startswith(begin) for begin in begins):
            texts += [f"Let me look.\n\n{call}", f"{call}\n{call}"]
    return texts


def told(pieces: Sequence[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """The content, the reasoning and the calls, with the text of their arguments."""
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallBegin(name=name):
                calls.append((name, ""))
            case CallArguments(text=text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, reasoning, calls


def read(
    text: str,
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    *,
    is_cut: bool,
    prompt: str = "",
) -> list[Piece]:
    parser = output_parser(tool_format, reasoning, prompt=prompt, tools=SHOP)
    pieces = list(parser.push(text))
    return [*pieces, *parser.finish(is_cut=is_cut)]


def check_cuts(
    text: str,
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    *,
    is_cut: bool,
    prompt: str = "",
) -> None:
    """Whatever a cut answer tells is a beginning of what the whole one tells. One that the model
    has ended itself may also tell the first character of a tag, and JSON without a tag."""
    whole = told(read(text, tool_format, reasoning, is_cut=False, prompt=prompt))
    for end in range(len(text)):
        pieces = read(text[:end], tool_format, reasoning, is_cut=is_cut, prompt=prompt)
        content, thoughts, calls = told(pieces)
        assert not re.search(r"[<\[]\S", content), text[:end]
        if not is_cut:
            continue
        assert whole[0].startswith(content.rstrip()), text[:end]
        assert whole[1].startswith(thoughts), text[:end]
        assert len(calls) <= len(whole[2]), text[:end]
        for (name, arguments), (its_name, its_arguments) in zip(calls, whole[2], strict=False):
            assert name == its_name
            assert its_arguments.startswith(arguments), text[:end]
        ends = [piece.complete for piece in pieces if isinstance(piece, CallEnd)]
        assert all(
            complete == (call == its_call)
            for complete, call, its_call in zip(ends, calls, whole[2], strict=False)
        ), text[:end]


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda found: found.name)
def test_a_cut_call_tells_no_markup(tool_format: ToolFormat, is_cut: bool) -> None:
    reasoning = REASONING_FORMATS.get(tool_format.name)
    for text in texts_of(tool_format):
        check_cuts(text, tool_format, reasoning, is_cut=is_cut)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("reasoning", REASONING_FORMATS.values(), ids=lambda found: found.name)
def test_a_cut_thought_tells_no_markup(reasoning: ReasoningFormat, is_cut: bool) -> None:
    thoughts = reasoning.parse
    if not isinstance(thoughts, ThoughtTags):
        return
    begin_answer, end_answer = thoughts.answer or ("", "")
    for begin, end in thoughts.pairs:
        rest = f"Why not.{end}\n{'' if begin_answer == end else begin_answer}Four.{end_answer}"
        check_cuts(f"{begin}{rest}", None, reasoning, is_cut=is_cut)
        if (begin, end) == thoughts.pairs[0]:
            check_cuts(rest, None, reasoning, is_cut=is_cut, prompt=begin)
