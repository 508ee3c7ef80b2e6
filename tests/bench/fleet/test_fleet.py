"""The short forms of what must never happen to a fleet: one of three replicas serves them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.fleet import follow, kill, rolling
from bench.fleet.__main__ import LINE
from bench.fleet.fleet import Fleet, missing_packages, running_fleet

MISSING = " ".join(missing_packages())

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{MISSING} is missing: pip install {MISSING}"
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with running_fleet(3, "--no-resume") as running:
        yield running


@pytest.mark.parametrize("module", [follow, rolling, kill], ids=["follow", "rolling", "kill"])
def test_a_fleet_acts_as_one_server(fleet, module):
    name = module.__name__.rpartition(".")[2]
    figures = module.measure(fleet, LINE.options(name, ["--short"]))
    assert [figure for figure in figures if not figure.with_patience(4).holds] == []
