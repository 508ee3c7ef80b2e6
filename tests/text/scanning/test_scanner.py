"""Reading text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.scanning.scanner import Incremental, Scanner


def run(scan: Scanner, steps: Incremental[object], texts: list[str]) -> object:
    """What the steps return when fed with texts."""
    for text in texts:
        scan.feed(text)
        try:
            next(steps)
        except StopIteration as end:
            return end.value
    scan.end()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("steps go on after the end")


@given(st.lists(st.text("<t>ab", max_size=4)), st.sampled_from([("<t>",), ("<t>", "<a"), ("aab",)]))
def test_until_the_first_tag(texts: list[str], tags: tuple[str, ...]) -> None:
    text = "".join(texts)
    found = [(text.index(tag), tag) for tag in tags if tag in text]
    told: list[str] = []
    scan = Scanner()
    tag = run(scan, scan.until(tags, told.append), texts)
    position, expected = min(found) if found else (len(text), None)
    assert tag == expected
    rest = text[:position].removeprefix("".join(told))
    assert text[:position] == "".join(told) + rest
    assert not rest or (tag is None and any(its.startswith(rest) for its in tags))
    assert all(told)


def test_only_the_beginning_of_a_tag_is_held_back() -> None:
    told: list[str] = []
    scan = Scanner()
    steps = scan.until(("<tag>",), told.append)
    for text in ("ab", "<", "<ta", "x<tag", "> behind"):
        scan.feed(text)
        next(steps, None)
    assert told == ["ab", "<", "<tax"]
    assert run(scan, scan.read(3), []) == " be"


@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [(["<", "tag>"], True), (["<t", "x"], False), (["<t"], False), ([], False)],
)
def test_take(texts: list[str], is_taken: bool) -> None:
    scan = Scanner()
    assert run(scan, scan.take("<tag>"), texts) is is_taken
    rest = "".join(texts) if "x" in texts else ""
    assert run(scan, scan.read(9), []) == rest


def test_what_was_read_can_be_had_again() -> None:
    scan = Scanner()
    scan.feed("  abc")
    scan.record()
    assert run(scan, scan.space(), []) == "  "
    assert run(scan, scan.read(2), []) == "ab"
    scan.put_back("b")
    assert scan.recorded() == "  a"
    assert scan.recorded() == ""
    assert run(scan, scan.read(2), []) == "bc"
    assert scan.is_empty
