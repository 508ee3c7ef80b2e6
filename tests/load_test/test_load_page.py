from __future__ import annotations

import sys

import pytest

from docs.check_site import loads_of_page
from fastovms.errors import ConfigurationError
from fastovms.load_test.load_page import check_plots, draw, html_page
from fastovms.load_test.timeline import Load, Timeline

LOAD = Load.of([Timeline(0.0, [0.1 * i for i in range(1, 20)]), Timeline(0.2, [0.5, 1.5])])


def test_a_page_needs_nothing_from_elsewhere() -> None:
    svg = draw({"http://a": [LOAD], "http://b": [LOAD, LOAD]})
    assert svg == draw({"http://a": [LOAD], "http://b": [LOAD, LOAD]}), (
        "the same loads give the same file"
    )
    page = html_page("bench <a>", "Mean TTFT (ms): <5", svg)
    assert page.startswith("<!doctype html>")
    assert loads_of_page(page) == []
    assert "<h1>bench &lt;a&gt;</h1>" in page
    assert "Mean TTFT (ms): &lt;5" in page
    assert "time to first token, ms" in page
    assert "http://b" in page


def test_a_load_without_an_answer_can_be_drawn() -> None:
    assert "http://a" not in draw({"http://a": [Load.of([])]})


def test_what_draws_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plots()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fastovms\[plots\]'"):
        check_plots()
