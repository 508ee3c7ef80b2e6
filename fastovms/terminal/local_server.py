"""Runs a server for one chat, which ends with it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from fastovms.errors import EngineFailed

_END_TIMEOUT: Final = 10.0
"""Seconds in which the server must end, before it is killed."""

_DIES_WITH_PARENT: Final = "fastovms.backends.processes.dies_with_parent"


@contextmanager
def local_server(model: str | None) -> Iterator[tuple[str, str]]:
    """Starts a server of one model on a free port, and yields its URL and the key that it wants,
    once it answers.

    Args:
        model: as `serve` takes it; None = the demo model.

    Raises:
        EngineFailed: it ended before it answered.
    """
    key = secrets.token_hex(16)
    command = [sys.executable, "-m", _DIES_WITH_PARENT, str(os.getpid())]
    command += [sys.executable, "-m", "fastovms", "serve", *([] if model is None else [model])]
    command += ["--host", "127.0.0.1", "--port", "0", "--state-dir", ":memory:"]
    command += ["--log-level", "warning", "--access-log", "off"]
    with tempfile.TemporaryFile("w+", prefix="fastovms-") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # Ctrl-C is for the answer, not for the server
        )
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            if not greeting:
                raise EngineFailed(f"the server has not started: {_last_line(log)}")
            yield greeting.split()[-1].rstrip(","), key
        finally:
            process.terminate()
            try:
                process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _last_line(log: IO[str]) -> str:
    log.seek(0)
    lines = log.read().splitlines()
    return lines[-1].removeprefix("fastovms: ") if lines else "it says nothing"
