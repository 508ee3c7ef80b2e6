"""Whole requests to this server and to its peer, FastAPI on uvicorn, over the same null engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

from bench.common.process import ServerProcess, server_process, two_cores
from bench.common.report import median, ratio, table

OURS: Final = ("-m", "bench.null_engine.null_server")
PEER: Final = ("-m", "bench.null_engine.fastapi_server")
_SCRIPT = Path(__file__).parents[1] / "wrk" / "completions.lua"
_NUM_ANSWERS = re.compile(r"^answers: (\d+), refused: (\d+)", re.MULTILINE)
_DIFFERENT = frozenset(("id", "created", "system_fingerprint"))
"""Members that differ from answer to answer."""


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
    """What came of asking one server for some seconds."""

    requests_per_second: float
    cpu_ms: float


def measure_requests(num_connections: int, seconds: int, num_runs: int, *, encodes: bool) -> None:
    """
    Args:
        encodes: prompts are encoded by the demo model's tokenizer, which costs both servers the
            same; otherwise they cost nothing, as the engine does.
    """
    server_core, client_core = two_cores()
    more = () if encodes else ("--null-tokenizer",)
    load = WrkLoad(num_connections, seconds, client_core)
    rows = []
    with (
        server_process((*OURS, *more), core=server_core) as ours,
        server_process((*PEER, *more), core=server_core) as peer,
    ):
        for kind in KINDS:
            check_same_answers(kind, ours.url, peer.url)
            runs: dict[ServerProcess, list[Run]] = {ours: [], peer: []}
            for number in range(-1, num_runs):
                for server, measured in runs.items():
                    run = load.run(server, kind)
                    if number >= 0:
                        measured.append(run)
            speeds = [[run.requests_per_second for run in runs[server]] for server in runs]
            costs = [[run.cpu_ms for run in runs[server]] for server in runs]
            rows.append(
                [
                    kind,
                    *map(median, speeds),
                    ratio(*speeds),
                    *map(median, costs),
                    ratio(*costs[::-1]),
                ]
            )
    columns = ("request", "fastovms req/s", "FastAPI req/s", "ratio")
    print(table((*columns, "fastovms CPU ms", "FastAPI CPU ms", "ratio"), rows))


class WrkLoad:
    """Asks over and over, as wrk does."""

    def __init__(self, num_connections: int, seconds: int, core: int) -> None:
        """Raises SystemExit: wrk is missing."""
        wrk = shutil.which("wrk")
        if wrk is None:
            raise SystemExit("wrk is missing: apt-get install wrk")
        self._command = ["taskset", "-c", str(core), wrk, "-t", "1", "-c", str(num_connections)]
        self._command += ["-d", f"{seconds}s", "--timeout", "30s", "-s", str(_SCRIPT)]
        self._seconds = seconds

    def run(self, server: ServerProcess, kind: Kind) -> Run:
        """Raises SystemExit: not every answer was one."""
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
        """Asks until the end of the block."""
        with subprocess.Popen(self._of(server, kind), stdout=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    def _of(self, server: ServerProcess, kind: Kind) -> list[str]:
        stream = ["stream"] if kind.stream else []
        return [*self._command, server.url + kind.path, "--", "null", str(kind.num_tokens), *stream]


def check_same_answers(kind: Kind, ours: str, theirs: str) -> None:
    """Raises SystemExit: the servers do not answer the same, member by member."""
    for one, other in zip_longest(_answer(kind, ours), _answer(kind, theirs)):
        if one != other:
            raise SystemExit(f"{kind}: the answers differ:\n{one}\n{other}")


def _answer(kind: Kind, url: str) -> list[Any]:
    """The members of an answer, or of each of its events, that are the same every time."""
    prompt = {"messages": [{"role": "user", "content": "Go."}]}
    body = {
        **(prompt if "chat" in kind.path else {"prompt": "Go."}),
        "max_tokens": kind.num_tokens,
        "stream": kind.stream,
    }
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url + kind.path, json.dumps(body).encode(), headers)) as response:
        text = response.read().decode()
    if not kind.stream:
        return [_same(json.loads(text))]
    *events, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    return [_same(json.loads(event.removeprefix("data: "))) for event in events]


def _same(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in _DIFFERENT}
