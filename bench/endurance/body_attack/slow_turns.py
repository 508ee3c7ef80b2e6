"""Runs the server with a thread that records the stack of the event loop's thread when the loop is
late.

    python -m bench.endurance.body_attack.slow_turns ARGUMENTS    # as python -m fastovms ARGUMENTS

A call that holds the GIL is recorded when it returns: the event loop's thread is still in it then.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

import uvloop

from fastovms.cli.main import main

REPORT: Final = "SLOW_TURNS_REPORT"
"""The environment variable with the path of the report."""

SLOW: Final = 0.03
"""The seconds after which an iteration of the event loop is recorded."""

_BEAT: Final = 0.005
_MAX_REPORT: Final = 200_000


class SlowTurns:
    """Watches the main thread's event loop from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Path) -> None:
        self._loop = loop
        self._report = report
        self._beaten_at = time.monotonic()
        self._collections: list[str] = []
        self._collecting_since = 0.0
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._watch, name="slow turns", daemon=True).start()
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        self._beaten_at = time.monotonic()
        self._loop.call_later(_BEAT, self._beat)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._collecting_since = now
        elif now - self._collecting_since > SLOW / 2:
            milliseconds = 1000 * (now - self._collecting_since)
            self._collections.append(
                f"garbage collection of generation {info['generation']}: {milliseconds:.0f} ms\n"
            )

    def _watch(self) -> None:
        main_thread = threading.main_thread().ident
        seen_at = 0.0
        with self._report.open("w") as report:
            while report.tell() < _MAX_REPORT:
                asleep_at = time.monotonic()
                time.sleep(_BEAT)
                beaten_at = self._beaten_at
                now = time.monotonic()
                late = max(now - beaten_at, now - asleep_at)  # this thread waits for the GIL, too
                if late < SLOW or beaten_at == seen_at:
                    continue
                seen_at = beaten_at
                collections, self._collections = self._collections, []
                report.write(f"\n{late * 1000:.0f} ms\n{''.join(collections)}")
                for ident, frame in sys._current_frames().items():
                    if ident != threading.get_ident():
                        who = "loop" if ident == main_thread else f"thread {ident}"
                        lines = traceback.format_stack(frame)
                        report.write(f"{who}:\n{''.join(lines[-3:])}")
                report.flush()


def _new_loop() -> uvloop.Loop:
    loop = _real_new_loop()
    SlowTurns(loop, Path(os.environ[REPORT]))
    return loop


_real_new_loop = uvloop.new_event_loop

if __name__ == "__main__":
    uvloop.new_event_loop = _new_loop
    raise SystemExit(main())
