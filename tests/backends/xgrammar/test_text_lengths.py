"""Strings of some lengths."""

from __future__ import annotations

from collections.abc import Callable

import openvino_genai as genai
import pytest

from fastovms.backends.xgrammar.text_lengths import text_of_length
from fastovms.backends.xgrammar.text_rules import CHARACTERS, rest_of_string
from tests.backends.xgrammar.repeating_pipeline import RepeatingPipeline


@pytest.fixture(scope="module")
def pipeline() -> RepeatingPipeline:
    return RepeatingPipeline()


def rules_of(least: int, most: int | None) -> str:
    rules = {"text": rest_of_string("text", CHARACTERS)}

    def add_rule(name: str, expression: Callable[[], str]) -> str:
        if name not in rules:
            rules[name] = expression()
        return name

    root = text_of_length(add_rule, least, most, "text")
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in rules.items())])


@pytest.mark.parametrize(
    ("least", "most"),
    [(0, 0), (0, 1), (1, 1), (0, 16), (3, 16), (0, 17), (5, 17), (17, 17), (16, 18), (18, 40),
     (40, 43), (37, 37), (2, 50), (0, 64), (0, None), (1, None), (20, None)],
)  # fmt: skip
def test_just_the_lengths_between_the_bounds(
    pipeline: RepeatingPipeline, least: int, most: int | None
) -> None:
    config = genai.StructuredOutputConfig()
    config.grammar = rules_of(least, most)
    highest = 60 if most is None else most
    lengths = {0, 1, least - 1, least, least + 1, highest - 17, highest - 1, highest, highest + 1}
    for length in sorted(length for length in lengths if length >= 0):
        expected = least <= length and (most is None or length <= most)
        for text in ("a" * length, r"\n" * length, "é" * length, ("the " * length)[:length]):
            assert pipeline.allows(config, f'{text}"') == expected, (length, text)


def test_a_quote_is_within_or_at_the_end(pipeline: RepeatingPipeline) -> None:
    config = genai.StructuredOutputConfig()
    config.grammar = rules_of(0, 100)
    assert pipeline.allows(config, r'say \"this\" and that"')
    assert not pipeline.allows(config, 'say "this" and that"')


def test_rules_do_not_grow_with_the_length() -> None:
    assert len(rules_of(0, 10**9).splitlines()) < 200
