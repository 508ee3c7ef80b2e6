"""Rules that match nothing are found, and no others."""

from __future__ import annotations

import pytest

from fastovms.grammar.lark.unmatchable_rules import unmatchable_rule


@pytest.mark.parametrize(
    ("lark", "expected"),
    [
        ("start: /a+/ b\nb: b", "start"),
        ("start: b?\nb: b", "b"),
        ("start: b\nb: c\nc: b", "start"),
        ('start: "x" start', "start"),
        ('start: "x" (start | b)\nb: start', "start"),
        ('start: "x" start{2}', "start"),
        ("start: A\nA: A", "start"),
        ('start: "x" start ~ 1..3', "start"),
    ],
)
def test_rules_without_an_end(lark: str, expected: str) -> None:
    assert unmatchable_rule(lark) == expected


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a" | "b" start',
        'start: "(" start? ")"',
        'start: "(" [start] ")"',
        'start: item*\nitem: start "x"',
        'start: "x" start{0,2}',
        'start: "x" start ~ 0..3',
        'start: "a"\n  | start "b" // start: nothing\n',
        'start[capture]: A b\nA: /[a-z]+/\nb: "|" | ("(" b ")")',
        'start: %json {"type": "object", "title": "b: }"} tail\ntail: "."',
        "start: <tool_call> text <[1-5]>\n?text.2: /(.|\\n)*/ -> name",
        "%ignore /\\s+/\nstart: undefined",
        'start: "\\"" other "/"\nother: /\\/+/',
        'start: ("a" | (("b")))+',
        "not lark at all {{",
        "",
    ],
)
def test_rules_that_come_to_an_end(lark: str) -> None:
    assert unmatchable_rule(lark) is None


def test_a_chain_of_many_rules() -> None:
    rules = [f'r{i}: "x" r{i + 1}' for i in range(200)]
    assert unmatchable_rule("\n".join(["start: r0", *rules, 'r200: "y"'])) is None
    assert unmatchable_rule("\n".join(["start: r0", *rules, "r200: r0"])) == "start"


def test_too_many_references() -> None:
    names = [f"r{i}" for i in range(3000)]
    rules = [f'{name}: "x"' for name in names]
    with pytest.raises(ValueError, match="too often"):
        unmatchable_rule("\n".join(["start: start", *rules, f"all: start {' '.join(names)}"]))


@pytest.mark.parametrize("name", ["r", "T"])
def test_rules_that_lead_to_one_another_too_often(name: str) -> None:
    def chain(length: int) -> str:
        rules = [f"{name}{i}: {name}{i + 1} | {name}0" for i in range(length)]
        return "\n".join([f"start: {name}0", *rules, f'{name}{length}: "a"'])

    assert unmatchable_rule(chain(240)) is None
    with pytest.raises(ValueError, match="over more than 250 others"):
        unmatchable_rule(chain(260))
