from __future__ import annotations

import pytest

from fastovms.backends.engine_thread.working_engines import WorkingEngines


def test_all_who_watch_know_how_many_work() -> None:
    engines = WorkingEngines()
    engines.begin()
    first: list[int] = []
    second: list[int] = []
    engines.watch(first.append)
    engines.begin()
    engines.watch(second.append)
    with pytest.raises(RuntimeError), engines.rest():
        raise RuntimeError
    engines.end()
    assert first == [1, 2, 1, 2, 1]
    assert second == [2, 1, 2, 1]
