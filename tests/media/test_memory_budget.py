"""The memory of decoded images: taken before, given back with the last reference."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from fastovms.errors import Overloaded
from fastovms.media.memory_budget import MemoryBudget


def test_what_there_is_no_room_for_is_refused() -> None:
    budget = MemoryBudget(10)
    budget.take(10)
    with pytest.raises(Overloaded):
        budget.take(1)
    assert budget.used == 10
    budget.give_back(4)
    budget.take(4)


def test_an_image_gives_back_when_nobody_has_it() -> None:
    budget = MemoryBudget(10)
    budget.take(10)
    image = np.zeros((1, 1, 3), np.uint8)
    budget.give_back_with(image, 10)
    view = image[:1]
    del image
    gc.collect()
    assert budget.used == 10, "a view of it is still there"
    del view
    gc.collect()
    assert budget.used == 0


def test_random_operations_never_take_more_than_there_is() -> None:
    rng = random.Random(0)
    budget, taken = MemoryBudget(100), []
    for _ in range(10_000):
        if taken and rng.random() < 0.5:
            budget.give_back(taken.pop(rng.randrange(len(taken))))
        else:
            size = rng.randrange(1, 50)
            try:
                budget.take(size)
            except Overloaded:
                assert sum(taken) + size > 100
            else:
                taken.append(size)
        assert budget.used == sum(taken) <= 100
