"""Checks inputs of batches in threads while the server answers requests."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from fastovms.batches.input_check import CheckedInput, InputRules, check_input
from fastovms.batches.pace import Pace
from fastovms.batches.slots import LineSlots
from fastovms.system.daemon_thread import in_daemon_thread

PAUSE: Final = 0.001
"""Seconds of each rest beside streams."""


class InputChecker:
    """Checks inputs, each in a thread of its own: a million lines take half a minute. Those of one
    owner are checked one after the other, those of another owner at the same time.

    Args:
        pause: seconds of each rest.
    """

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._turns = LineSlots(lambda: 1)

    async def check(self, path: Path, rules: InputRules, owner: str = "") -> CheckedInput:
        """Checks a file after the owner's earlier ones. A cancellation ends the thread soon;
        neither other checks nor the end of the process wait for that.

        Raises:
            OSError: the file cannot be read.
        """
        await self._turns.acquire(1, owner)
        pace = Pace(self._pause)
        try:
            return await in_daemon_thread("input-check", partial(check_input, path, rules, pace))
        finally:
            pace.stop()
            self._turns.release(1, owner)
