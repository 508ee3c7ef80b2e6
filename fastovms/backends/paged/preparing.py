"""Runs processes that prepare faster kernels for a model while it serves requests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fastovms.backends.paged.backend import WaitForRequests
from fastovms.backends.processes import ChildProcess, WorkerFailed, receive, send

_RUN: Final = 0.1
_PAUSE: Final = 0.1
"""The seconds for which the process alternately runs and is stopped while engines work. On two
cores, a process that ran all the time at the lowest priority got half a core, and cost 1 and 32
clients 5 and 16 % of their throughput; at nice value 10 it got 0.8 cores, and cost 21 %."""

_NICENESS: Final = 10
_LONGER_PAUSE: Final = 0.4
"""The same for a process that got too little CPU time: it then gets a tenth of a core even if
others need the core."""

_PATIENCE: Final = 60.0
_LEAST_SHARE: Final = 0.05
"""A process got too little CPU time if it had less than `_LEAST_SHARE` of a core over this many
seconds."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def run_preparation(
    module: str,
    *arguments: str,
    may_go_on: WaitForRequests,
    message: object = None,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """Runs `serve` of a module as a process, and sends it a message. Returns the answer, a
    `WorkerFailed` if the process ended without one, or None if the backend is closed. The process
    runs at the lowest priority; if it gets too little CPU time, it is restarted with a fixed
    share."""
    for is_patient in (True, False):
        try:
            process = ChildProcess(module, *arguments, dies_with_thread=True)
        except OSError as error:
            return WorkerFailed(f"cannot be started: {error}")
        with suppress(OSError):  # a sandbox may forbid changes of priorities
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            if is_patient:
                os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        with suppress(EOFError, OSError):
            send(process.connection, message)
            start = clock()
            while not process.connection.poll(_RUN):
                process.send_signal(signal.SIGSTOP)
                is_open = may_go_on(0.0, _PAUSE if is_patient else _LONGER_PAUSE)
                process.send_signal(signal.SIGCONT)
                if not is_open:
                    process.end()
                    return None
                since = clock() - start
                enough = _LEAST_SHARE * since
                if is_patient and since > _PATIENCE and _seconds_of(process.pid) < enough:
                    break
            else:
                answer = receive(process.connection)
                process.close()
                return answer
            process.end()
            continue
        return WorkerFailed(process.close())
    raise AssertionError("the second process ends")


def _seconds_of(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
