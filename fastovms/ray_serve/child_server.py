"""Starts a server as a process on a port of its own, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL
from typing import Final

from fastovms.backends.processes.process import fate
from fastovms.errors import BackendUnavailable

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"


class ChildServer:
    """A server whose models are loaded. It ends with this process, however this one ends.

    Attributes:
        url: where it listens, such as "http://127.0.0.1:40123".
    """

    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        self._process = process
        self._output = asyncio.create_task(self._log_output())

    @classmethod
    async def start(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> ChildServer:
        """Returns once the server can be asked.

        Args:
            arguments: those of `fastovms serve`, without addresses.
            environment: variables beside those of this process.

        Raises:
            BackendUnavailable: it has ended before; its log says why.
        """
        serve = [sys.executable, "-m", "fastovms", "serve", *arguments]
        process = await asyncio.create_subprocess_exec(
            *[
                sys.executable,
                "-m",
                "fastovms.backends.processes.dies_with_parent",
                str(os.getpid()),
            ],
            *[*serve, "--host", _HOST, "--port", "0"],
            stdin=DEVNULL,
            stdout=PIPE,
            env={**os.environ, **environment},
        )
        try:
            url = await _listening_at(process)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        return cls(process, url)

    async def wait(self) -> str:
        """Returns what has become of it, such as "was ended by SIGKILL", once it has ended."""
        return fate(await self._process.wait())

    async def stop(self) -> None:
        """Has the server end what it runs and waits for its end, for as long as it takes: see
        `--drain-timeout`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
        await self._output

    async def _log_output(self) -> None:
        """Reads on, so that the server never waits for a reader of what it prints."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            logger.info("%s", line.decode(errors="replace").rstrip())


async def _listening_at(process: Process) -> str:
    """Reads the first line of the greeting, which the server prints when its models are loaded."""
    assert process.stdout is not None
    greeting = (await process.stdout.readline()).decode()
    if not greeting:
        raise BackendUnavailable(
            f"the server {fate(await process.wait())} before it was ready; its log says why"
        )
    logger.info("%s", greeting.rstrip())
    return greeting.rpartition(" ")[2].rstrip()
