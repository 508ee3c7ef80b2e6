"""The HTTP layer and the API on one core, its client on another.

    python -m bench.http sse       # a null engine: frames per second over 64 streams
    python -m bench.http models    # GET /v1/models against uvicorn with a bare ASGI application

`models` needs wrk (apt-get install wrk) and uvicorn (pip install uvicorn), measured with httptools
and uvloop and without an access log; the two servers take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec

import uvloop

from bench.client import Load, Target, completion, run_load
from bench.process import server_process, two_cores
from bench.report import machine, median, ratio, table

NULL_SERVER = ("-m", "bench.null_server")
UVICORN = (
    "-m", "uvicorn", "bench.bare_asgi:app", "--http", "httptools", "--loop", "uvloop",
    "--lifespan", "off", "--log-level", "warning", "--no-access-log",
)  # fmt: skip
_REQUESTS_PER_SECOND = re.compile(r"Requests/sec:\s+([\d.]+)")


def measure_sse(num_streams: int, num_tokens: int, num_runs: int) -> None:
    """Streams as fast as both sides can. Frames are fewer than tokens where the client was too
    slow to read them one by one."""
    server_core, client_core = two_cores()
    bodies = [completion("null", [1], num_tokens) for _ in range(num_streams)]
    with (
        server_process(NULL_SERVER, core=server_core) as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        os.sched_setaffinity(0, {client_core})
        target = Target.from_url(f"{url}/v1")
        loads: list[Load] = []
        for number in range(-1, num_runs):
            load = runner.run(run_load(target, bodies))
            if load.num_tokens != num_streams * num_tokens:
                raise SystemExit(f"{load.num_tokens} tokens, not {num_streams * num_tokens}")
            if number >= 0:
                loads.append(load)
    frames = [load.num_events / load.seconds for load in loads]
    rows = [
        [
            num_streams,
            num_tokens,
            median(frames),
            min(frames),
            max(frames),
            median([load.num_events / (num_streams * num_tokens) for load in loads]),
        ]
    ]
    print(table(("streams", "tokens each", "frames/s", "min", "max", "frames a token"), rows))


def measure_models(num_connections: int, seconds: int, num_runs: int) -> None:
    wrk = shutil.which("wrk")
    if wrk is None:
        raise SystemExit("wrk is missing: apt-get install wrk")
    if find_spec("uvicorn") is None:
        raise SystemExit("uvicorn is missing: pip install uvicorn")
    server_core, client_core = two_cores()
    command = ["taskset", "-c", str(client_core), wrk]
    command += ["-t", "1", "-c", str(num_connections), "-d", f"{seconds}s"]
    with (
        server_process(NULL_SERVER, core=server_core) as ours,
        server_process(UVICORN, core=server_core) as theirs,
    ):
        speeds: dict[str, list[float]] = {ours: [], theirs: []}
        for number in range(-1, num_runs):
            for url, measured in speeds.items():
                speed = _requests_per_second([*command, f"{url}/v1/models"])
                if number >= 0:
                    measured.append(speed)
    rows = [
        [
            num_connections,
            median(speeds[ours]),
            median(speeds[theirs]),
            ratio(speeds[ours], speeds[theirs]),
        ]
    ]
    print(table(("connections", "fastovms req/s", "uvicorn req/s", "ratio"), rows))


def _requests_per_second(command: list[str]) -> float:
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _REQUESTS_PER_SECOND.search(output)
    if found is None or "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"wrk did not get clean answers:\n{output}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.http",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    sse = commands.add_parser("sse")
    sse.add_argument("-n", "--streams", type=int, default=64)
    sse.add_argument("-g", "--tokens", type=int, default=5000, help="of each stream")
    sse.add_argument("-r", "--runs", type=int, default=5)
    sse.set_defaults(measure=lambda a: measure_sse(a.streams, a.tokens, a.runs))
    models = commands.add_parser("models")
    models.add_argument("-n", "--connections", type=int, default=64)
    models.add_argument("-d", "--seconds", type=int, default=5, help="of each run")
    models.add_argument("-r", "--runs", type=int, default=5)
    models.set_defaults(measure=lambda a: measure_models(a.connections, a.seconds, a.runs))
    arguments = parser.parse_args()
    measure: Callable[[argparse.Namespace], None] = arguments.measure
    print(f"{machine()}\n")
    measure(arguments)


if __name__ == "__main__":
    main()
