"""Has inputs of batches checked beside everything else that a server does."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.batches.input_check import CheckedInput, InputRules, check_input
from fastovms.batches.pace import Pace
from fastovms.system.daemon_thread import in_daemon_thread

PAUSE: Final = 0.001
"""Seconds of each rest beside streams."""


class InputChecker:
    """Checks inputs one after the other, each in a thread of its own: a million lines take half a
    minute, for which no other work may wait.

    Args:
        pause: seconds of each rest.
    """

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._turn = asyncio.Lock()

    async def check(self, path: Path, rules: InputRules) -> CheckedInput:
        """Checks a file when those are done that were to be checked before. Where this is
        cancelled, the thread ends soon, and keeps neither others nor the process from going on.

        Raises:
            OSError: the file cannot be read.
        """
        async with self._turn:
            pace = Pace(self._pause)
            try:
                return await in_daemon_thread(
                    "input-check", partial(check_input, path, rules, pace)
                )
            finally:
                pace.stop()
