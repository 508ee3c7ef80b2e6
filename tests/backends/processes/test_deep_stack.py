"""Threads with deep stacks."""

from __future__ import annotations

import threading

from fastovms.backends.processes.deep_stack import TRIAL_STACK, start_thread


def test_the_thread_has_several_times_the_stack_of_trials() -> None:
    before = threading.stack_size()
    found: list[int] = []

    def measure() -> None:
        with open("/proc/self/maps") as file:
            addresses = [line.split()[0].split("-") for line in file]
        sizes = [int(end, 16) - int(start, 16) for start, end in addresses]
        found.extend(size for size in sizes if TRIAL_STACK * 16 <= size <= TRIAL_STACK * 16 + 65536)

    thread = start_thread(measure, name="deep")
    thread.join(10)
    assert found
    assert (thread.name, thread.daemon) == ("deep", True)
    assert threading.stack_size() == before
