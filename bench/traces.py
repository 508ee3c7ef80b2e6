"""What recording traces costs: the same streams from two servers in turns, of which one sends a
span of every request to a collector.

    python -m bench.traces              # 32 streams from a null engine
    python -m bench.traces --demo       # the demo model computes them

The processor time of a server is told too: it has less noise than tokens per second, and has that
of the thread which sends the spans. Needs the extra `otel`.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Self

import uvloop

from bench.common.process import ServerProcess, server_process
from bench.common.report import machine, median, ratio, table
from bench.common.streams import completion, run_streams
from fastovms.parts.client.http_client import Target
from fastovms.server_config import DEMO_MODEL

NULL_SERVER = ("-m", "bench.null_engine.null_server")
DEMO_SERVER = ("-m", "fastovms", "serve", "--cache-size", "0.5", "--access-log", "off")


class Collector:
    """Takes spans by OTLP over HTTP, and counts the bytes."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector.num_bytes += len(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class Turn(NamedTuple):
    """One load: tokens per second, and the server's processor time for each request in ms."""

    tokens_per_second: float
    milliseconds: float


def measure(num_streams: int, num_tokens: int, num_runs: int, *, demo: bool) -> None:
    model, server = (DEMO_MODEL.name, DEMO_SERVER) if demo else ("null", NULL_SERVER)
    request = completion(model, [1], num_tokens)
    turns: dict[str, list[Turn]] = {"without": [], "with": []}
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        collector = stack.enter_context(Collector())
        servers = {
            "without": stack.enter_context(server_process(server)),
            "with": stack.enter_context(
                server_process((*server, "--otlp-traces-endpoint", collector.url))
            ),
        }

        def take_turn(process: ServerProcess) -> Turn:
            before = process.cpu_seconds
            target = Target.from_url(f"{process.url}/v1")
            load = runner.run(run_streams(target, [request] * num_streams))
            spent = (process.cpu_seconds - before) / num_streams
            return Turn(load.tokens_per_second, spent * 1000)

        order = list(servers)
        for number in range(-1, num_runs):
            order.reverse()  # so that none has the better place
            for name in order:
                turn = take_turn(servers[name])
                if number >= 0:
                    turns[name].append(turn)
    if not collector.num_bytes:
        raise SystemExit("no span has arrived")
    rows = [
        [
            name,
            median([turn.tokens_per_second for turn in taken]),
            median([turn.milliseconds for turn in taken]),
        ]
        for name, taken in turns.items()
    ]
    print(f"{num_streams} streams of {num_tokens} tokens, {num_runs} runs\n")
    print(table(("traces", "tokens/s", "processor ms a request"), rows))
    for name in Turn._fields:
        ours, theirs = ([getattr(turn, name) for turn in turns[key]] for key in ("with", "without"))
        print(f"\n{name.replace('_', ' ')}, with / without: {ratio(ours, theirs)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.traces",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--streams", type=int, default=32)
    parser.add_argument("-g", "--tokens", type=int, default=1000, help="of each stream")
    parser.add_argument("-r", "--runs", type=int, default=9)
    parser.add_argument("--demo", action="store_true", help="let the demo model compute them")
    chosen = parser.parse_args()
    print(f"{machine()}\n")
    measure(chosen.streams, chosen.tokens, chosen.runs, demo=chosen.demo)


if __name__ == "__main__":
    main()
