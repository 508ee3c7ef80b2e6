"""Answers that end anywhere: markup that a limit cuts is not content, other markup is."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from fastovms.text.headed_messages import HeadedMessages
from fastovms.text.output import output_parser
from fastovms.text.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningMarkup
from fastovms.text.scanning import Piece
from fastovms.text.tool_descriptions import written_call
from fastovms.text.tools import TOOL_FORMATS, ToolFormat
from fastovms.text.tools.tool_format import TaggedCalls
from tests.text.parsing import said
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
    prompt: str = "",
) -> None:
    """Whatever an answer tells that a limit has cut is a beginning of what the whole one tells."""
    whole = said(read(text, tool_format, reasoning, is_cut=False, prompt=prompt))
    for end in range(len(text)):
        pieces = read(text[:end], tool_format, reasoning, is_cut=True, prompt=prompt)
        content, thoughts, calls, ends = said(pieces)
        assert not re.search(r"[<\[]\S", content), text[:end]
        assert whole[0].startswith(content.rstrip()), text[:end]
        assert whole[1].startswith(thoughts), text[:end]
        assert len(calls) <= len(whole[2]), text[:end]
        for (name, arguments), (its_name, its_arguments) in zip(calls, whole[2], strict=False):
            assert name == its_name
            assert its_arguments.startswith(arguments), text[:end]
        assert all(
            complete == (call == its_call)
            for complete, call, its_call in zip(ends, calls, whole[2], strict=False)
        ), text[:end]


@pytest.mark.slow
@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda found: found.name)
def test_call_that_is_cut_shows_no_markup(tool_format: ToolFormat) -> None:
    reasoning = REASONING_FORMATS.get(tool_format.name)
    for text in texts_of(tool_format):
        check_cuts(text, tool_format, reasoning)


@pytest.mark.parametrize("reasoning", REASONING_FORMATS.values(), ids=lambda found: found.name)
def test_reasoning_that_is_cut_shows_no_markup(reasoning: ReasoningFormat) -> None:
    thoughts = reasoning.parse
    if not isinstance(thoughts, ReasoningMarkup):
        return
    begin_answer, end_answer = thoughts.answer or ("", "")
    for begin, end in thoughts.pairs:
        rest = f"Why not.{end}\n{'' if begin_answer == end else begin_answer}Four.{end_answer}"
        check_cuts(f"{begin}{rest}", None, reasoning)
        if (begin, end) == thoughts.pairs[0]:
            check_cuts(rest, None, reasoning, prompt=begin)


# Answers that the model itself ends within markup: it is content to the last character.


def begins_of(form: TaggedCalls | ReasoningMarkup | HeadedMessages) -> Sequence[str]:
    """The tags of a format that begin calls, reasoning or messages."""
    match form:
        case TaggedCalls(begins=begins):
            return begins
        case ReasoningMarkup(pairs=pairs):
            return [begin for begin, _ in pairs]
        case _:
            return form.begins


@pytest.mark.parametrize(
    ("tool_format", "reasoning"),
    [
        *[(found, REASONING_FORMATS.get(found.name)) for found in TOOL_FORMATS.values()],
        *[(None, found) for found in REASONING_FORMATS.values()],
        *[(TOOL_FORMATS["hermes3"], found) for found in REASONING_FORMATS.values()
          if isinstance(found.parse, ReasoningMarkup)],
    ],
    ids=lambda found: "none" if found is None else found.name,
)  # fmt: skip
def test_tag_that_ends_an_answer_is_content(
    tool_format: ToolFormat | None, reasoning: ReasoningFormat | None
) -> None:
    forms = [found.parse for found in (tool_format, reasoning) if found is not None]
    prompt = (reasoning.end if reasoning is not None else None) or ""
    begins = {begin for form in forms for begin in begins_of(form)} - {"<|channel>thought\n"}
    for begin in begins:
        for before in ("", "Let me see ", "Let me see\n\n"):
            for end in range(1, len(begin) + 1):
                text = before + begin[:end]
                if tool_format is not None and tool_format.name == "functionary_v32":
                    text = f"all\n{text}"
                found = said(read(text, tool_format, reasoning, is_cut=False, prompt=prompt))
                assert found == (text.removeprefix("all\n"), "", [], []), text
                if len(begin) > 1:
                    stream = output_parser(tool_format, reasoning, prompt=prompt, tools=SHOP)
                    pieces = [piece for letter in text for piece in stream.push(letter)]
                    assert said([*pieces, *stream.finish(is_cut=False)]) == found, text


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda found: found.name)
def test_call_that_the_model_does_not_finish_loses_no_text(tool_format: ToolFormat) -> None:
    """Names, values and markup of an unfinished call are in the content, or in its arguments."""
    for text in texts_of(tool_format):
        whole = said(read(text, tool_format, None, is_cut=False)).calls
        for end in range(1, len(text)):
            content, _, calls, _ = said(read(text[:end], tool_format, None, is_cut=False))
            if not calls and not isinstance(tool_format.parse, HeadedMessages):
                assert content.split() == text[:end].removeprefix("all\n").split(), text[:end]
            assert all(call[0] == its[0] for call, its in zip(calls, whole, strict=False))
