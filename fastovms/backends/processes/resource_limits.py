"""Sets limits of memory and time for a child process, so that what a client sends cannot take
more."""

from __future__ import annotations

import resource
import signal
from typing import Final

_BUSY_FACTOR: Final = 10
"""How many times as long as its time of a processor something may take where the machine is
busy."""


def set_soft_limit(limit: int, value: int) -> None:
    """Bounds one of the `resource.RLIMIT_*`s for this process. A hard limit, such as the service
    manager or the operator has set, stays as it is, and the bound is not above it: only root may
    raise those."""
    _, hard = resource.getrlimit(limit)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (soft, hard))


def limit_time(seconds: float) -> None:
    """Has SIGPROF end this process once its threads have taken so many more seconds of a processor,
    or SIGALRM once ten times as many have passed, as on a busy machine. 0 takes both limits back.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _BUSY_FACTOR)
