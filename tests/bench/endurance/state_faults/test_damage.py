from __future__ import annotations

from random import Random

from bench.endurance.state_faults.damage import measure_damage
from bench.figures.figure import Figure


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name.removeprefix("damaged: "): figure for figure in figures}


def test_damaged_objects_are_reported_as_errors():
    figures = by_name(measure_damage(12, Random(1)))
    assert [name for name, figure in figures.items() if not figure.holds] == []
    assert figures["objects that are an error now"].value > 0


def test_a_store_without_checksums_is_noticed(monkeypatch):
    monkeypatch.setattr("fastovms.state.tables.unseal", lambda sealed: sealed[:-4])
    figures = by_name(measure_damage(12, Random(1)))
    assert not figures["objects with texts other than those kept"].holds
