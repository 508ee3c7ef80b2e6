"""Measures whole requests of wrk to the server with the null engine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.common.process import ServerProcess, server_process, two_cores
from bench.common.report import median, table

NULL_SERVER: Final = ("-m", "bench.null_engine.null_server")
_SCRIPT = Path(__file__).parents[1] / "wrk" / "completions.lua"
_NUM_ANSWERS = re.compile(r"^answers: (\d+), refused: (\d+)", re.MULTILINE)


class Kind(NamedTuple):
    """A kind of request."""

    path: str
    num_tokens: int
    stream: bool

    def __str__(self) -> str:
        return f"{self.path}, {'stream' if self.stream else 'unary'}, {self.num_tokens} tokens"


KINDS: Final = tuple(
    Kind(path, num_tokens, stream)
    for path in ("/v1/completions", "/v1/chat/completions")
    for num_tokens, stream in ((1, False), (32, True))
)


class Run(NamedTuple):
    """The result of sending requests for some seconds."""

    requests_per_second: float
    cpu_ms: float


def measure_requests(num_connections: int, seconds: int, num_runs: int, *, encodes: bool) -> None:
    """Measures requests.

    Args:
        encodes: whether the demo model's tokenizer encodes prompts; otherwise encoding takes no
            time.
    """
    server_core, client_core = two_cores()
    more = () if encodes else ("--null-tokenizer",)
    load = WrkLoad(num_connections, seconds, client_core)
    rows = []
    with server_process((*NULL_SERVER, *more), core=server_core) as server:
        for kind in KINDS:
            _warm_up, *runs = [load.run(server, kind) for _ in range(1 + num_runs)]
            rows.append([kind, *map(median, zip(*runs, strict=True))])
    print(table(("request", "req/s", "CPU ms"), rows))


class WrkLoad:
    """Sends requests continuously with wrk."""

    def __init__(self, num_connections: int, seconds: int, core: int) -> None:
        """Raises SystemExit: wrk is not installed."""
        wrk = shutil.which("wrk")
        if wrk is None:
            raise SystemExit("wrk is missing: apt-get install wrk")
        self._command = ["taskset", "-c", str(core), wrk, "-t", "1", "-c", str(num_connections)]
        self._command += ["-d", f"{seconds}s", "--timeout", "30s", "-s", str(_SCRIPT)]
        self._seconds = seconds

    def run(self, server: ServerProcess, kind: Kind) -> Run:
        """Raises SystemExit: a request failed."""
        before = server.cpu_seconds
        output = subprocess.run(
            self._of(server, kind), capture_output=True, text=True, check=True
        ).stdout
        cpu_seconds = server.cpu_seconds - before
        found = _NUM_ANSWERS.search(output)
        if found is None or found[1] == "0" or found[2] != "0" or "Socket errors" in output:
            raise SystemExit(f"wrk did not get clean answers:\n{output}")
        num_answers = int(found[1])
        return Run(num_answers / self._seconds, 1000 * cpu_seconds / num_answers)

    @contextmanager
    def running(self, server: ServerProcess, kind: Kind) -> Iterator[None]:
        """Sends requests until the end of the block."""
        with subprocess.Popen(self._of(server, kind), stdout=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    def _of(self, server: ServerProcess, kind: Kind) -> list[str]:
        stream = ["stream"] if kind.stream else []
        return [*self._command, server.url + kind.path, "--", "null", str(kind.num_tokens), *stream]
