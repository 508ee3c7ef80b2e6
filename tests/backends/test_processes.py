"""Tests of `fastovms/backends/processes.py`."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from fastovms.backends import processes
from fastovms.backends.processes import ChildProcess, receive, send

# Limits that processes set for themselves.


INFINITY = resource.RLIM_INFINITY

CHILD = """
import resource, sys
from fastovms.backends.processes import set_soft_limit
soft, hard, value = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
set_soft_limit(resource.RLIMIT_CPU, value)
print(*resource.getrlimit(resource.RLIMIT_CPU))
"""


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ((INFINITY, INFINITY), 50, (50, INFINITY)),
        ((30, INFINITY), 50, (50, INFINITY)),  # the limit of the image before
        ((60, 60), 50, (50, 60)),
        ((30, 40), 50, (40, 40)),
        ((40, 40), 50, (40, 40)),
    ],
)
def test_soft_limit_is_set_within_the_hard_limit(
    before: tuple[int, int], value: int, after: tuple[int, int]
) -> None:
    command = [sys.executable, "-c", CHILD, *map(str, (*before, value))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(map(int, result.stdout.split())) == after


# Child processes: their messages and their ends.


MODULE = """
import os, signal, sys
from fastovms.backends.processes import receive, send

def serve(connection, *arguments):
    send(connection, (receive(connection), [*arguments], os.getpgid(0) == os.getpid()))
    os.kill(os.getpid(), signal.SIGTERM)  # is meant for the server
    {end}
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(end: str, **options: bool) -> ChildProcess:
        (tmp_path / "child_of_test.py").write_text(MODULE.format(end=end))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
        return ChildProcess("child_of_test", "x", "y", **options)

    return make


@pytest.mark.parametrize(
    ("end", "exit_description"),
    [
        ("receive(connection)", "has ended with code 0"),
        ("1 / 0", "has ended with code 1"),
        ("sys.exit(3)", "has ended with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    ],
)
def test_child_receives_messages_and_ends_with_its_fate(
    start, end: str, exit_description: str
) -> None:
    child = start(end)
    numbers = np.arange(100_000)
    send(child.connection, {"numbers": numbers})
    answer, arguments, leads_a_group = receive(child.connection)
    assert (answer["numbers"] == numbers).all()
    assert (arguments, leads_a_group) == (["x", "y"], True)
    child.connection.close()
    assert child.wait() == exit_description


def test_child_that_does_not_end_is_killed(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_END_TIMEOUT", 0.1)
    child = start("signal.pause()")
    send(child.connection, 0)
    receive(child.connection)
    assert child.wait() == "was ended by SIGKILL"
    child.kill()  # nothing is left of a process that has ended
    child.connection.close()


@pytest.mark.parametrize("dies", [True, False])
def test_stopped_child_is_killed_with_its_thread_if_asked(start, dies: bool) -> None:
    children: list[ChildProcess] = []

    def run() -> None:
        child = start("signal.pause()", dies_with_thread=dies)
        children.append(child)
        send(child.connection, 0)
        receive(child.connection)
        child.send_signal(signal.SIGSTOP)

    thread = Thread(target=run)
    thread.start()
    thread.join(60)
    [child] = children
    if dies:
        assert child._process.wait(60) == -signal.SIGKILL
    else:
        time.sleep(0.1)
        assert child._process.poll() is None
    child.end()


@pytest.mark.parametrize("message", [None, "text", [np.zeros((2, 3)), np.ones(0)], b"x" * 10**5])
def test_messages_pass_through_a_pipe_unchanged(message: object) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        send(ours, message)
        np.testing.assert_equal(receive(theirs), message)
