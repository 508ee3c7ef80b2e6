from __future__ import annotations

from fastovms.backends.paged.shared_cores import SharedCores


def test_who_takes_turns_and_who_measures_watch_one_count() -> None:
    cores = SharedCores.create()
    assert cores.turn.slice_seconds is None, "nobody waits for a slice"
    cores.engines.begin()
    assert cores.turn.slice_seconds is not None
    with cores.engines.rest():
        assert cores.turn.slice_seconds is None
