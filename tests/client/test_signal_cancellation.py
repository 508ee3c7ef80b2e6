from __future__ import annotations

import asyncio
import signal

import uvloop

from fastovms.client.signal_cancellation import cancelled_by


def test_a_signal_cancels_the_task_and_means_what_it_did_afterwards() -> None:
    async def run() -> bool:
        task = asyncio.create_task(asyncio.sleep(60))
        with cancelled_by(signal.SIGUSR1, task=task):
            signal.raise_signal(signal.SIGUSR1)
            await asyncio.wait([task], timeout=10)
        return task.cancelled()

    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(run())
        assert received == []
        signal.raise_signal(signal.SIGUSR1)
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
