"""Child processes: what they are told, and how they end."""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

import numpy as np
import pytest

from fastovms.backends.processes import process as process_module
from fastovms.backends.processes.process import ChildProcess, fate, receive, send

MODULE = """
import os, signal, sys
from fastovms.backends.processes.process import connect_to_parent, receive, send
connection = connect_to_parent(sys.argv)
send(connection, (receive(connection), sys.argv[2:], os.getpgid(0) == os.getpid()))
os.kill(os.getpid(), signal.SIGTERM)  # is meant for the server
{end}
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(end: str) -> ChildProcess:
        (tmp_path / "child_of_test.py").write_text(MODULE.format(end=end))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")
        return ChildProcess("child_of_test", "x", "y")

    return make


@pytest.mark.parametrize(
    ("end", "fate"),
    [
        ("receive(connection)", "has ended with code 1"),  # the connection's end is an error
        ("sys.exit(3)", "has ended with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    ],
)
def test_it_is_told_and_ends(start, end: str, fate: str) -> None:
    child = start(end)
    numbers = np.arange(100_000)
    send(child.connection, {"numbers": numbers})
    answer, arguments, leads_a_group = receive(child.connection)
    assert (answer["numbers"] == numbers).all()
    assert (arguments, leads_a_group) == (["x", "y"], True)
    child.connection.close()
    assert child.wait() == fate


def test_one_that_does_not_end_is_killed(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_END_TIMEOUT", 0.1)
    child = start("signal.pause()")
    send(child.connection, 0)
    receive(child.connection)
    assert child.wait() == "was ended by SIGKILL"
    child.kill()  # of one that has ended nothing is left to kill
    child.connection.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "has ended with code 0"), (-signal.SIGSEGV, "was ended by SIGSEGV")],
)
def test_fates(code: int, words: str) -> None:
    assert fate(code) == words


@pytest.mark.parametrize("message", [None, "text", [np.zeros((2, 3)), np.ones(0)], b"x" * 10**5])
def test_messages(message: object) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        send(ours, message)
        np.testing.assert_equal(receive(theirs), message)
