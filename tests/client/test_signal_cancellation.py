from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, signal, uvloop
from fastovms.client.signal_cancellation import cancelled_by

async def run():
    task = asyncio.create_task(asyncio.sleep(60))
    with cancelled_by(signal.SIGINT, signal.SIGTERM, task=task) as cancellation:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait([task], timeout=10)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
    return task.cancelled(), cancellation.exit_code

signal.signal(signal.SIGTERM, lambda number, frame: print("as before"))
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    print(runner.run(run()))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_cancels_the_task_and_means_what_it_did_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(True, 143)\nas before\n", "")
