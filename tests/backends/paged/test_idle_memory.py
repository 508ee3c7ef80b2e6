"""Memory is seen to in idle moments, a piece at a time, and what is given back rarely."""

from __future__ import annotations

import pytest

from fastovms.backends.paged import idle_memory
from fastovms.backends.paged.idle_memory import IdleMemory


class BusyModel:
    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces
        self.done: list[str] = []

    def commit_ahead(self, num_used_blocks: int) -> bool:
        if self.num_pieces == 0:
            return False
        self.num_pieces -= 1
        self.done.append(f"commit after {num_used_blocks}")
        return True

    def forget_files(self) -> None:
        self.done.append("forget")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> BusyModel:
    model = BusyModel(2)
    monkeypatch.setattr(idle_memory, "forget_compiler", lambda: model.done.append("compiler"))
    return model


def test_the_cache_comes_first_then_what_was_read(model: BusyModel) -> None:
    memory = IdleMemory(model)
    assert [memory.tidy(0) for _ in range(5)] == [True, True, True, False, False]
    assert model.done == ["commit after 0", "commit after 0", "forget", "compiler"]


def test_what_was_read_is_looked_at_again_when_use_has_doubled(model: BusyModel) -> None:
    model.num_pieces = 0
    memory = IdleMemory(model)
    looks = [used for used in range(100) if memory.tidy(used)]
    assert looks == [0, 1, 2, 4, 8, 16, 32, 64]
    assert model.done == ["forget", "compiler"] * len(looks)
