from __future__ import annotations

from fastovms.state.sqlite.disk_return import DiskReturn, UnusableFile
from fastovms.state.sqlite.memory_fallback import MemoryFallback
from tests.state.conftest import Clock
from tests.state.transactions import add, find


def test_it_is_in_memory_until_its_file_can_be_had(make_database, tmp_path):
    answers = [UnusableFile("no luck"), make_database(path=str(tmp_path / "state.db"))]

    def open_file():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = Clock()
    state = MemoryFallback(make_database(), DiskReturn(open_file, "a reason", clock))
    add(state, "a")
    assert state.trouble == "responses are kept in memory: a reason"
    assert (state.keep_house(), state.is_on_disk) == (1, False)
    clock.now += 1
    assert (state.keep_house(), state.is_on_disk) == (2, False)
    assert state.trouble == "responses are kept in memory: no luck"
    clock.now += 2
    assert state.keep_house() > 60
    assert (state.trouble, state.is_on_disk) == ("", True)
    assert find(state, "a") is not None
    assert state.totals.num_objects == 1
    state.close()
