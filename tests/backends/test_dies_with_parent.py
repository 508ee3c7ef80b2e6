from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

DEADLINE = 120.0
MODULE = "fastovms.backends.dies_with_parent"
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", {MODULE!r}, str(os.getpid()), "sleep", "600"], stdout=sys.stderr
)
print(flush=True)
child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_ends_with_its_parent(number: signal.Signals) -> None:
    reading, writing = os.pipe()  # the command keeps it open while it runs
    with os.fdopen(reading, "rb") as alive:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=writing
        )
        os.close(writing)
        assert parent.stdout is not None
        with parent.stdout:
            parent.stdout.readline()
        parent.send_signal(number)
        parent.wait()
        assert select.select([alive], [], [], DEADLINE)[0], "the command runs on"


def test_command_of_an_ended_parent_does_not_run_and_prints_nothing() -> None:
    command = [sys.executable, "-m", MODULE, "1", "echo", "runs"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
