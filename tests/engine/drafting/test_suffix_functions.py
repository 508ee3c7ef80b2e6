"""When the kernels of the suffix index are there, and what happens before."""

from __future__ import annotations

import threading
from array import array

import pytest

from fastovms.engine.drafting import suffix_index
from fastovms.engine.drafting.suffix_functions import SuffixFunctions
from fastovms.engine.drafting.suffix_index import SuffixIndex

TEXT = array("q", [1, 2, 3, 4, 1, 2])


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> SuffixFunctions:
    """Those of a process in which nobody has loaded any."""
    functions = SuffixFunctions()
    monkeypatch.setattr(suffix_index, "SUFFIX_FUNCTIONS", functions)
    return functions


def guess() -> list[int]:
    index = SuffixIndex(100)
    text = index.new_text(None)
    index.extend(text, TEXT, 4)
    found = index.guess(text, TEXT, 2, least=0.0)
    index.learn(text, found, array("q", [3]))
    index.check()
    return found.token_ids.tolist()


@pytest.mark.usefixtures("functions")
def test_the_first_use_waits_for_kernels_that_nobody_has_asked_for() -> None:
    assert guess() == [3, 4]


def test_nothing_is_looked_up_until_they_are_there(functions: SuffixFunctions) -> None:
    compiled = threading.Event()
    before = threading.Thread(target=compiled.wait)
    before.start()
    thread = functions.load_beside(before)
    assert guess() == []
    compiled.set()
    thread.join()
    assert guess() == [3, 4]


def test_nothing_is_looked_up_where_they_cannot_be_compiled(
    functions: SuffixFunctions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(functions, "load", fail)
    before = threading.Thread()
    before.start()
    functions.load_beside(before).join()
    assert guess() == []
    assert "nothing is looked up" in caplog.text
