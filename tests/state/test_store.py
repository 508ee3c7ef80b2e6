from __future__ import annotations

import asyncio

from fastovms.state.store import Watchers, response_topic


async def test_watch_is_woken_by_its_topic():
    watchers = Watchers()
    with watchers.watch("a") as first, watchers.watch("a") as second, watchers.watch("b") as other:
        watchers.wake("a")
        watchers.wake("nobody's")
        for watch in (first, second):
            await asyncio.wait_for(watch.changed(3600), 60)
        waiting = asyncio.ensure_future(other.changed(3600))
        await asyncio.sleep(0)
        assert not waiting.done()
        watchers.wake_all()
        await asyncio.wait_for(waiting, 60)
        await first.changed(0.001)
    assert not watchers._watches


async def test_wake_before_waiting_is_not_missed():
    watchers = Watchers()
    with watchers.watch("a") as watch:
        watchers.wake("a")
        await asyncio.wait_for(watch.changed(3600), 60)
        await watch.changed(0.001)  # woken once


def test_topics_are_short_and_unique():
    keys = [("t", "r"), ("t", "r2"), ("tr", ""), ("", "tr"), ("t\0", "r"), ("t", "\0r")]
    topics = {response_topic(*key) for key in keys}
    assert len(topics) == len(keys)
    assert all(len(topic) == 32 and topic.isascii() for topic in topics)
