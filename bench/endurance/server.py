"""The server process that an endurance test attacks, with the kernel's figures of it."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from bench.common.process import ending_with_us, free_port

MODEL = "demo_model"
SERVE = ("-m", "fastovms", "serve")
START_TIMEOUT = 120.0
STOP_TIMEOUT = 45.0
_WRITE_TIMEOUT = 120.0
_MIB = 1024 * 1024


class ServerUnderTest:
    """A server process with the built-in demo model unless another one is given.

    Its address does not change when `kill` and `start` replace the process.

    Args:
        flags: flags of `fastovms serve` beside the address and the state directory.
        directory: the directory of its state, cache and log.
        program: the arguments of Python before the flags.
        environ: additional environment variables.
        pass_fds: file descriptors that the process inherits.
        port: the TCP port; None = any free one.
        context: a TLS context that trusts the certificate of the flags for "localhost"; None =
            plain HTTP.
    """

    def __init__(
        self,
        flags: Sequence[str],
        directory: Path,
        *,
        program: Sequence[str] = SERVE,
        environ: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        port: int | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        origin = "http://127.0.0.1" if context is None else "https://localhost"
        self.url = f"{origin}:{self.port}"
        self._context = context
        self.state_dir = directory / "state"
        self.log = directory / "server.log"
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._command = [sys.executable, *program, *address]
        self._command += ["--state-dir", str(self.state_dir), "--access-log", "off", *flags]
        self._environ = {**os.environ, **(environ or {})}
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Starts a process and waits until it is ready, unless told otherwise.

        Raises:
            SystemExit: the process ended or was not ready in time.
        """
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(self._command),
                env=self._environ,
                pass_fds=self._pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns when `/ready` reports success. Raises SystemExit if the process ends or the time
        is over."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            self.check_alive()
            try:
                with urlopen(f"{self.url}/ready", timeout=5, context=self._context):
                    return
            except (URLError, OSError):
                if time.monotonic() > deadline:
                    raise SystemExit(f"not ready in {START_TIMEOUT:.0f} s\n{self.tail}") from None
                time.sleep(0.02)

    def check_alive(self) -> None:
        """Raises SystemExit with the end of its log if the process has ended."""
        if not self.is_alive:
            raise SystemExit(f"the server ended: exit code {self.process.poll()}\n{self.tail}")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def tail(self) -> str:
        """Returns the last 3,000 characters of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    # Signals

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ends the process with SIGTERM, or with SIGKILL after a limit. Returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode

    # Resource usage

    def resident_memory(self) -> float:
        """Returns the resident memory of the process in MiB, without its children."""
        return self._status("VmRSS") / 1024

    def peak_memory(self) -> float:
        """Returns the peak resident memory of the process in MiB."""
        return self._status("VmHWM") / 1024

    def workers_memory(self) -> float:
        """Returns the resident memory of the process's children in MiB, without shared memory."""
        kib = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
                if int(fields["PPid"]) == self.process.pid:
                    kib += int(fields.get("RssAnon", "0").split()[0])
        return kib / 1024

    def cpu_seconds(self) -> float:
        """Returns the processor time of the process in seconds, without its children."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = map(int, fields[11:13])  # proc_pid_stat(5): utime and stime
        return (user + system) / os.sysconf("SC_CLK_TCK")

    def num_threads(self) -> int:
        return self._status("Threads")

    def num_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metrics(self, api_key: str = "none") -> dict[str, float]:
        """Returns the sum of each metric's samples over their labels, by name without prefix."""
        request = Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {api_key}"})
        with urlopen(request, timeout=30, context=self._context) as response:
            text = response.read().decode()
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("fastovms_")
                values[name] = values.get(name, 0.0) + sample.value
        return values

    def wait_until_prefixes_are_written(self) -> None:
        """Returns when no blocks of prompts are being written.

        Raises:
            SystemExit: the time is over.
        """
        before, deadline = -1.0, time.monotonic() + _WRITE_TIMEOUT
        while (now := self.metrics()["prefix_cache_disk_written_bytes_total"]) > before:
            if time.monotonic() > deadline:
                raise SystemExit(f"blocks are still written after {_WRITE_TIMEOUT:.0f} s")
            before = now
            time.sleep(0.5)

    def _status(self, field: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0])
        raise KeyError(field)


@contextmanager
def server_under_test(
    *flags: str,
    program: Sequence[str] = SERVE,
    environ: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[ServerUnderTest]:
    """Starts a server in a temporary directory, and ends it after the block."""
    with tempfile.TemporaryDirectory(prefix="fastovms-endurance-") as directory:
        server = ServerUnderTest(
            flags, Path(directory), program=program, environ=environ, context=context
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()
