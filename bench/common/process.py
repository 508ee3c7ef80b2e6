"""Server processes that a benchmark starts, waits for and stops."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.request import urlopen

START_TIMEOUT = 300.0
ANSWER_TIMEOUT = 5.0
STOP_TIMEOUT = 10.0


_TICK = 1 / os.sysconf("SC_CLK_TCK")


class ServerProcess(NamedTuple):
    """A server that answers at `url`."""

    url: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """Returns the processor seconds that all threads of the process have used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def listening_port(pid: int) -> int | None:
    """Returns the first TCP port on which a process listens according to the kernel's socket table,
    or None if there is none."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        table = Path(f"/proc/{pid}/net/tcp").read_text()
    except OSError:
        return None
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].partition(":")[2], 16)
    return None


def ending_with_us(command: Sequence[str]) -> list[str]:
    """Returns a command whose process the kernel kills when the calling thread ends, so that an
    interrupted benchmark leaves no process behind.

    Raises:
        SystemExit: setpriv is missing.
    """
    return [_required("setpriv"), "--pdeathsig", "KILL", *command]


@contextmanager
def server_process(
    python_arguments: Sequence[str], *, core: int | None = None, ready_path: str = "/v1/models"
) -> Iterator[ServerProcess]:
    """Runs `python ARGUMENTS --host 127.0.0.1 --port PORT` and yields the process when it answers.

    Args:
        core: the only core that the process may use.

    Raises:
        SystemExit: the process ended or did not answer in time.
    """
    port = free_port()
    command = [sys.executable, *python_arguments, "--host", "127.0.0.1", "--port", str(port)]
    if core is not None:
        command = [_required("taskset"), "-c", str(core), *command]
    url = f"http://127.0.0.1:{port}"
    with answering_process(command, url + ready_path) as process:
        yield ServerProcess(url, process.pid)


@contextmanager
def answering_process(
    command: Sequence[str], url: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command with its output on standard error, and yields the process when a URL answers.

    Args:
        environment: additional environment variables.

    Raises:
        SystemExit: the process ended or did not answer in time.
    """
    process = subprocess.Popen(
        ending_with_us(command), stdout=sys.stderr, env={**os.environ, **environment}
    )
    try:
        _wait(process, url)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def two_cores() -> tuple[int, int]:
    """Returns one core for the server and another one for its client.

    Raises:
        SystemExit: this process may use only one core.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this benchmark needs two cores: one for the server, one for its client")
    return cores[0], cores[1]


def _required(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"{program} is missing: apt-get install util-linux")
    return path


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None:
        try:
            with urlopen(url, timeout=ANSWER_TIMEOUT):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"{url} did not answer within {START_TIMEOUT:.0f} s") from None
            time.sleep(0.05)
    raise SystemExit(f"the server ended with exit code {process.returncode} before it answered")
