"""Tests of `ReasoningLimit` of `fastovms/engine/processors.py`."""

from __future__ import annotations

from array import array
from copy import copy

import numpy as np
import pytest

from fastovms.engine.processors import ReasoningLimit, logits_processors
from fastovms.params import ReasoningBudget, ReasoningTags, SamplingParams

BYTES = [bytes([value]) for value in range(256)]
THINK = ReasoningTags(b"<think>", b"</think>", tuple(b"</think>"))
WORDS = ReasoningTags(b"Thoughts:", b"Answer:", tuple(b"Answer:"))


def params(num_tokens: int, *tags: ReasoningTags, **members: object) -> SamplingParams:
    options = {"is_inside": True, "is_anywhere": False, "other_ends": (), **members}
    budget = ReasoningBudget(num_tokens, tags or (THINK,), token_bytes=BYTES, **options)  # type: ignore[arg-type]
    return SamplingParams(reasoning_budget=budget)


def run(limit: ReasoningLimit, wanted: bytes) -> bytes:
    """Returns the text of a model that prefers these bytes: forced tokens, and preferred ones where
    any are allowed."""
    token_ids, rest = array("q", list(b"prompt")), list(wanted)
    while rest:
        logits = np.zeros(256, np.float32)
        limit(logits, token_ids)
        allowed = np.flatnonzero(logits > -np.inf)
        token_ids.append(int(allowed[0]) if allowed.size == 1 else rest.pop(0))
    return bytes(token_ids[6:].tolist())


@pytest.mark.parametrize(
    ("limit", "wanted", "said"),
    [
        (params(3), b"abcdef", b"abc</think>def"),
        (params(0), b"abc", b"</think>abc"),
        (params(9), b"abcdef", b"abcdef"),
        # An end tag that has begun is completed, and text that resembles one does not delay the
        # end.
        (params(3), b"ab</think>cdefgh", b"ab</think>cdefgh"),
        (params(3), b"ab</thank you", b"ab</tha</think>nk you"),
        (params(3), b"ab" + b"<" * 40, b"ab" + b"<" * 17 + b"</think>" + b"<" * 23),
        # Characters are not split.
        (params(2), "aé漢".encode(), "aé</think>漢".encode()),
        (params(3), "aé漢x".encode(), "aé</think>漢x".encode()),
        (params(4), "aé漢x".encode(), "aé漢</think>x".encode()),
        (params(1), "😀x".encode(), "😀</think>x".encode()),
        # Reasoning ends by itself and may not begin again.
        (params(4), b"ab</think>cd<think>efghij", b"ab</think>cd<think>efghij"),
        (params(3, is_inside=False), b"abcdef<think>abcdef", b"abcdef<think>abcdef"),
        (params(3, is_inside=False), b" \n<think>abcdef", b" \n<think>abc</think>def"),
        (params(3, is_inside=False, is_anywhere=True), b"hi <think>abcdef",
         b"hi <think>abc</think>def"),
        # The sections of an answer share the budget.
        (params(4, is_inside=False, is_anywhere=True), b"<think>a</think>b<think>cdefg",
         b"<think>a</think>b<think></think>cdefg"),
        # A section ends with its own tag, in any of the forms.
        (params(2, THINK, WORDS, is_inside=False), b"Thoughts:abcd", b"Thoughts:abAnswer:cd"),
        (params(2, THINK, WORDS, is_inside=False), b"Thought is free", b"Thought is free"),
        # A tool call ends it, too.
        (params(7, other_ends=(b"<call>",)), b"a<call>bcdefghijk", b"a<call>bcdefghijk"),
        (params(5, other_ends=(b"<call>",)), b"a<call>bcdefghijk", b"a<call>bcdefghijk"),
    ],
)  # fmt: skip
def test_reasoning_ends_with_its_budget(limit: SamplingParams, wanted: bytes, said: bytes) -> None:
    [processor] = logits_processors(limit, array("q", list(b"prompt")))
    assert isinstance(processor, ReasoningLimit)
    assert run(processor, wanted) == said


def test_the_text_is_the_same_for_a_fork_and_for_a_resumed_sample() -> None:
    [processor] = logits_processors(params(3), array("q", list(b"prompt")))
    logits = np.zeros(256, np.float32)
    processor(logits, array("q", list(b"promptabc</th")))
    fork = copy(processor)
    for limit in (processor, fork):
        logits = np.zeros(256, np.float32)
        limit(logits, array("q", list(b"promptabc</thi")))
        assert np.flatnonzero(logits > -np.inf).tolist() == [ord("n")]


def test_only_the_closing_token_is_possible_whatever_else_was_ruled_out() -> None:
    [*_, processor] = logits_processors(params(0), array("q", list(b"prompt")))
    logits = np.full(256, -np.inf, np.float32)
    processor(logits, array("q", list(b"prompt")))
    assert np.flatnonzero(logits > -np.inf).tolist() == [ord("<")]
