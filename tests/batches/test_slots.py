"""Lines have their turns, within a limit that may change."""

from __future__ import annotations

import asyncio

from fastovms.batches.slots import LineSlots

MB = 1024 * 1024


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_limit_changes() -> None:
    limit = 2
    slots = LineSlots(lambda: limit)
    tasks = [asyncio.ensure_future(slots.acquire(1)) for _ in range(6)]
    await settle()
    assert [task.done() for task in tasks] == [True] * 2 + [False] * 4
    limit = 1
    slots.release(1)
    await settle()
    assert slots.num_used == 1
    limit = 4
    slots.release(1)
    await settle()
    assert [task.done() for task in tasks] == [True] * 6
    assert slots.num_used == 4


async def test_large_lines() -> None:
    slots = LineSlots(lambda: 100)
    await slots.acquire(100 * MB)
    waiting = asyncio.ensure_future(slots.acquire(1))
    await settle()
    assert not waiting.done()
    slots.release(100 * MB)
    await waiting


async def test_who_is_cancelled_leaves_its_turn() -> None:
    slots = LineSlots(lambda: 1)
    await slots.acquire(1)
    tasks = [asyncio.ensure_future(slots.acquire(1)) for _ in range(4)]
    await settle()
    tasks[0].cancel()  # before its turn
    tasks[1].cancel()
    slots.release(1)  # in the same pass
    await settle()
    assert tasks[2].done()
    slots.release(1)  # the turn of the last one comes,
    tasks[3].cancel()  # and it is cancelled before it knows
    await settle()
    assert slots.num_used == 0
    assert [task.cancelled() for task in tasks] == [True, True, False, True]


async def test_an_owner_without_a_slot_gets_one_beside_those_of_another() -> None:
    slots = LineSlots(lambda: 2)
    many = [asyncio.ensure_future(slots.acquire(1, "many")) for _ in range(4)]
    one = [asyncio.ensure_future(slots.acquire(1, "one")) for _ in range(2)]
    await settle()
    assert [task.done() for task in (*many, *one)] == [True, True, False, False, True, False]
    slots.release(1, "many")
    slots.release(1, "many")
    await settle()
    assert [task.done() for task in (*many, *one)].count(True) == 5
    for task in (*many, *one):
        task.cancel()
    await asyncio.gather(*many, *one, return_exceptions=True)
