"""Tests of `fastovms/backends/template_renderer.py` and of its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from jinja2 import TemplateError

from fastovms.backends.processes import ChildProcess
from fastovms.backends.template_renderer import TemplateRenderer
from fastovms.errors import BackendUnavailable
from fastovms.text.budget import FULL, Budget, LimitExceeded, Limits, Malformed

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
MEMORY = (
    "{% set n = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set x = n.l.append({'a': 'é' * 99999}) %}{% endfor %}"
)


@contextmanager
def rendering(
    start: Callable[[], ChildProcess] | None = None,
) -> Iterator[tuple[TemplateRenderer, Budget]]:
    renderer, budget = TemplateRenderer(start), Budget()
    try:
        yield renderer, budget
    finally:
        renderer.close()


def test_template_is_rendered_and_its_work_is_counted() -> None:
    source = "{% for x in xs %}{{ x }}{% endfor %}"
    with rendering() as (renderer, budget), budget.of(FULL):
        for length in (10, 20):
            before = budget.passes
            text = renderer.render(source, {"xs": ["é"] * length}, budget)
            assert text == "é" * length
            assert length <= before - budget.passes < 2 * length


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        ("{% if %}", Malformed, "Expected an expression"),
        ("{{ " + "(" * 50_000, Malformed, "recursion|nested"),
        ("{{ raise_exception('only users') }}", TemplateError, "only users"),
        ("{{ missing.name }}", TemplateError, "'missing' is undefined"),
        ("{{ 1 + 'a' }}", TemplateError, "unsupported operand"),
        ("{{ 'a' * 3000000000 }}", LimitExceeded, "3000000000 characters"),
    ],
)
def test_errors_of_a_template_leave_the_process_alive(
    source: str, error: type[Exception], reason: str
) -> None:
    with rendering() as (renderer, budget), budget.of(FULL):
        renderer.render("a", {}, budget)
        peers = set(renderer._peers)
        with pytest.raises(error, match=reason):
            renderer.render(source, {}, budget)
        assert renderer.render("b", {}, budget) == "b"
        assert renderer._peers == peers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "limits"),
    [
        (LOOPS, Limits(10**12, 10**12, 0.3)),
        (MEMORY, Limits(10**12, 10**12, 30.0)),
        (LOOPS, Limits(100_000, 10**9, 30.0)),
        (MEMORY, Limits(10**9, 10_000_000, 30.0)),
    ],
)
def test_limit_ends_a_rendering_and_the_next_one_succeeds(source: str, limits: Limits) -> None:
    with rendering() as (renderer, budget):
        with budget.of(limits), pytest.raises(LimitExceeded, match=r"takes|makes more than"):
            renderer.render(source, {}, budget)
        with budget.of(FULL):
            assert renderer.render("{{ x }}", {"x": 1}, budget) == "1"


def test_time_is_shared_by_the_renderings_of_a_request() -> None:
    with rendering() as (renderer, budget), budget.of(FULL):
        budget.seconds = 0.0
        with pytest.raises(LimitExceeded, match="takes more than 5 seconds"):
            renderer.render("a", {}, budget)
        assert not renderer._peers


def test_process_that_cannot_be_started_is_unavailable() -> None:
    def fail() -> ChildProcess:
        raise OSError(12, "no memory")

    with rendering(fail) as (renderer, budget), budget.of(FULL), pytest.raises(BackendUnavailable):
        renderer.render("a", {}, budget)


def test_closed_renderer_refuses_templates() -> None:
    with rendering() as (renderer, budget), budget.of(FULL):
        renderer.render("a", {}, budget)
        renderer.close()
        for _ in range(2):
            with pytest.raises(BackendUnavailable):
                renderer.render("a", {}, budget)
