from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.text.detokenizer import TableDetokenizer
from fastovms.text.output import TextStream
from fastovms.text.stop import StopMatcher, StopResult, completes_stop

# Few letters, so that stop strings overlap with themselves, each other and the text.
stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=5)
texts = st.lists(st.text("abc", max_size=6), max_size=12)


class Outcome(NamedTuple):
    text: str
    stop: str | None


def reference(text: str, stop: Sequence[str], include: bool, passed: int = 0) -> Outcome:
    """Ends the text at the first character behind `passed` where a stop string is complete."""
    for end in range(passed + 1, len(text) + 1):
        for candidate in stop:
            if text[:end].endswith(candidate):
                return Outcome(text[: end if include else end - len(candidate)], candidate)
    return Outcome(text, None)


def run(matcher: StopMatcher, pieces: Sequence[str]) -> Outcome:
    results = [matcher.push(piece) for piece in pieces]
    text = "".join(result.text for result in results) + matcher.flush()
    return Outcome(text, results[-1].stop if results else None)


@pytest.mark.slow
@given(stops, texts, texts, st.booleans())
def test_skipped_text_may_begin_but_not_end_a_stop_string(
    stop: list[str], passed: list[str], pieces: list[str], include: bool
) -> None:
    matcher = StopMatcher(stop, include)
    shown = "".join(matcher.push(piece, ends=False).text for piece in passed)
    rest = run(matcher, pieces)
    num_passed = len("".join(passed))
    expected = reference("".join([*passed, *pieces]), stop, include, num_passed)
    assert Outcome(shown + rest.text, rest.stop) == expected


@pytest.mark.slow
@given(stops, st.text("abc", max_size=30))
def test_text_is_held_back_only_while_it_may_be_a_stop(stop: list[str], text: str) -> None:
    matcher = StopMatcher(stop)
    released = ""
    for end, char in enumerate(text, 1):
        result = matcher.push(char)
        released += result.text
        if result.stop is not None:
            return
        held = text[len(released) : end]
        assert released + held == text[:end]
        longest = max(
            (
                length
                for candidate in stop
                for length in range(len(candidate))
                if text[:end].endswith(candidate[:length])
            ),
            default=0,
        )
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stop", "pieces", "results"),
    [
        pytest.param(["END"], ["a E", "N", "D b"], [("a ", None), ("", None), ("", "END")]),
        pytest.param(["END"], ["a E", "N", "X"], [("a ", None), ("", None), ("ENX", None)]),
        pytest.param(["\n\n"], ["a\n", "b\n", "\nc"], [("a", None), ("\nb", None), ("", "\n\n")]),
        pytest.param(["aab"], ["aa", "a", "b"], [("", None), ("a", None), ("", "aab")]),
        pytest.param(["abcx", "bc"], ["ab", "c"], [("", None), ("a", "bc")], id="first complete"),
        pytest.param(["cd", "bcd"], ["abcd"], [("ab", "cd")], id="tie: order given"),
        pytest.param(["bcd", "cd"], ["abcd"], [("a", "bcd")], id="tie: order given, reversed"),
        pytest.param(["b"], ["abab", "b"], [("a", "b"), ("", "b")], id="nothing after a stop"),
        pytest.param(["😀"], ["a😀b"], [("a", "😀")]),
        pytest.param([], ["a", "b"], [("a", None), ("b", None)]),
    ],
)
def test_stop_strings_are_found_across_pieces(
    stop: list[str], pieces: list[str], results: list[tuple[str, str | None]]
) -> None:
    matcher = StopMatcher(stop)
    assert [matcher.push(piece) for piece in pieces] == [StopResult(*result) for result in results]


def test_included_stop_string_is_shown_as_it_comes() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert matcher.push("a E") == ("a E", None)
    assert matcher.push("ND b") == ("ND", "END")
    assert matcher.push("c") == ("", "END")
    assert matcher.flush() == ""


def test_flush_releases_an_incomplete_stop_string() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == ("the ", None)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


def test_huge_stop_string_is_prepared_only_as_far_as_matched() -> None:
    matcher = StopMatcher(["a" * 10_000_000])
    assert matcher.push("a" * 3 + "b") == ("aaab", None)
    assert sum(map(len, (search._failure for search in matcher._searches))) < 10


@pytest.mark.slow
@given(texts, stops.filter(bool), st.integers(0, 4))
def test_completes_stop_agrees_with_a_stream(
    texts: list[str], stop: list[str], min_tokens: int
) -> None:
    table = [text.encode() for text in texts]

    def new_detokenizer() -> TableDetokenizer:
        return TableDetokenizer(table, strip_leading_space=False)

    stream = TextStream(new_detokenizer(), stop, min_tokens=min_tokens)
    for token_id in range(len(texts)):
        ended = stream.push([token_id]).stop is not None
        backwards = range(token_id, -1, -1)
        completes = completes_stop(new_detokenizer, stop, min_tokens, None, token_id + 1, backwards)
        assert completes == ended


def test_completes_stop_reads_only_the_end_of_a_long_text() -> None:
    def new_detokenizer() -> TableDetokenizer:
        return TableDetokenizer([b"a", b"b"], strip_leading_space=True)

    backwards = iter([1, *[0] * 100_000])
    assert completes_stop(new_detokenizer, ["aab"], 0, None, 100_001, backwards)
    assert len(list(backwards)) > 99_900
    backwards = iter([1, *[0] * 100_000])
    assert not completes_stop(new_detokenizer, ["aab"], 100_001, None, 100_001, backwards)
