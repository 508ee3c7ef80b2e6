"""`stalls`: sends bodies that may block the event loop, and measures the effect on other clients.

While several bodies of one kind are sent at once, another process requests `/ping` every 20 ms and
two canaries stream; the bodies of one canary have 70 KB and are therefore decoded in a thread. The
longest latency of `/ping` is an upper bound of the longest iteration of the event loop, which the
server's own metric also measures.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.common.prober import probing
from bench.endurance.body_attack.slow_turns import REPORT
from bench.endurance.canary import canary
from bench.endurance.server import MODEL, SERVE, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

PROBER_START: Final = 1.0
"""The seconds that the prober has to start."""
TIMEOUT: Final = 120.0
PADDING: Final = 70_000
LONGEST_FIRST: Final = 2.0
"""The longest allowed time to the first token of a request with a body of 70 KB, in seconds."""
HOST: Final = "127.0.0.1"
_MIB: Final = 1024 * 1024
_TRACED: Final = ("-m", "bench.endurance.body_attack.slow_turns", "serve")

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def _listed(field: str, element: bytes, count: int, *, rest: str = "") -> bytes:
    """Returns a body with a list of many equal elements."""
    return b'{"%b":[%b]%b}' % (field.encode(), b",".join([element] * count), rest.encode())


def _string(field: str, unit: bytes, size: int) -> bytes:
    return b'{"%b":"%b"}' % (field.encode(), unit * (size // len(unit)))


def _members(field: str, count: int) -> bytes:
    members = b",".join([b'"%x":1' % number for number in range(count)])
    return b'{"%b":{%b}}' % (field.encode(), members)


def chat_with_images(data: bytes, count: int = 1) -> bytes:
    """Returns the body of a chat that contains the same image several times."""
    url = b"data:image/png;base64," + base64.b64encode(data)
    part = b'{"type":"image_url","image_url":{"url":"%b"}}' % url
    parts = b",".join([part] * count)
    return b'{"messages":[{"role":"user","content":[%b]}],"max_tokens":1}' % parts


KINDS: Mapping[str, tuple[str, Callable[[int], bytes]]] = {
    "token ids": (COMPLETIONS, lambda size: _listed("prompt", b"15", min(size // 3, 490_000))),
    "too many values": (COMPLETIONS, lambda size: _listed("prompt", b"1", min(size // 2, 900_000))),
    "texts": (COMPLETIONS, lambda size: _listed("prompt", b'"a"', min(size // 4, 240_000))),
    "a long text": (COMPLETIONS, lambda size: _string("prompt", b"a", size)),
    "a text of escapes": (COMPLETIONS, lambda size: _string("prompt", rb"\u00e9", size)),
    "a text of quotes": (COMPLETIONS, lambda size: _string("prompt", rb"\"", size)),
    "a text of emoji": (COMPLETIONS, lambda size: _string("prompt", "😀".encode(), size)),
    "an unknown field": (COMPLETIONS, lambda size: _string("nothing", b"a", size)),
    "biases": (COMPLETIONS, lambda size: _members("logit_bias", min(size // 10, 80_000))),
    "huge numbers": (CHAT, lambda size: _listed("documents", b"1e300", min(size // 6, 700))),
    "empty messages": (CHAT, lambda size: _listed("messages", b"{}", min(size // 3, 120_000))),
    "messages": (
        CHAT,
        lambda size: _listed("messages", b'{"role":"user","content":"a"}', min(size // 30, 25_000)),
    ),
    "an image that is none": (CHAT, lambda size: chat_with_images(bytes(size * 3 // 4))),
    "metadata": (RESPONSES, lambda size: _members("metadata", min(size // 10, 80_000))),
    "input items": (
        RESPONSES,
        lambda size: _listed("input", b'{"role":"user","content":"a"}', min(size // 30, 25_000)),
    ),
    "stored input": (RESPONSES, lambda size: _string("input", b"a ", min(size, 4 * _MIB))),
    "tokens to decode": (
        "/v1/detokenize",
        lambda size: _listed("tokens", b"15", min(size // 3, 490_000)),
    ),
    "text to tokenize": ("/v1/tokenize", lambda size: _string("prompt", b"a b ", size)),
    "many choices": (
        COMPLETIONS,
        lambda size: (
            b'{"prompt":"a","n":16,"logprobs":20,"max_tokens":100,"ignore_eos":true,"temperature":1}'
        ),
    ),
    "white space": (COMPLETIONS, lambda size: b'{"prompt":' + b" " * size + b'"a"}'),
    "brackets": (COMPLETIONS, lambda size: b"[" * size),
    "quotes": (COMPLETIONS, lambda size: b'"' * size),
    "noise": (COMPLETIONS, lambda size: random.Random(size).randbytes(size)),
}


async def _post(port: int, path: str, body: bytes) -> float:
    """Sends a body and reads the whole answer. Returns the seconds from the end of the body."""
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            start = asyncio.get_running_loop().time()
            answer = await reader.read(-1)
            if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 4")):
                raise SystemExit(f"{path} was answered with {answer[:300]!r}")
            return asyncio.get_running_loop().time() - start
        finally:
            writer.close()


async def post_all(port: int, path: str, body: bytes, *, at_once: int, rounds: int) -> float:
    """Returns the longest latency in seconds."""
    longest = 0.0
    for _ in range(rounds):
        answers = [_post(port, path, body) for _ in range(at_once)]
        longest = max(longest, *await asyncio.gather(*answers))
    return longest


def _attack(server: ServerUnderTest, name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the longest latency of `/ping` and that of the bodies."""
    path, make = KINDS[name]
    body = make(options.size * _MIB)
    with probing(HOST, server.port, ["/ping"]) as latencies:
        time.sleep(PROBER_START)
        longest = asyncio.run(
            post_all(server.port, path, body, at_once=options.at_once, rounds=options.rounds)
        )
    server.check_alive()
    return max(latencies["/ping"]), longest


def run(options: argparse.Namespace) -> Sequence[Figure]:
    names = [name for name in KINDS if not options.kinds or name in options.kinds]
    figures, longest = [], 0.0
    with TemporaryDirectory() as directory:
        report = Path(directory, "slow-turns")
        program = _TRACED if options.trace else SERVE
        environ = {REPORT: str(report)} if options.trace else {}
        with server_under_test("--cache-size", "0.1", program=program, environ=environ) as server:
            base = server.resident_memory()
            with (
                canary(server.url, MODEL) as seen,
                canary(server.url, MODEL, max_tokens=1, padding=PADDING) as large,
            ):
                for name in names:
                    ping, answer = _attack(server, name, options)
                    longest = max(longest, answer)
                    figures.append(Figure(f"/ping: {name}", ping * 1000, "ms", options.longest))
                    print(f"  {name}: /ping {ping * 1000:.0f} ms", flush=True)
                    gc.collect()
            metrics = server.metrics()
            stall = metrics["loop_longest_stall_seconds"]
            busy = metrics["loop_longest_busy_seconds"]
            memory = server.resident_memory() - base
        if options.trace:
            print(report.read_text() if report.exists() else "no slow turn")
    return [
        *figures,
        Figure("longest stall by the server's own metric", stall * 1000, "ms", options.longest),
        Figure("of a stall the loop's own time, at most", busy * 1000, "ms", options.busy),
        Figure("longest gap of a stream beside it", seen.longest_gap * 1000, "ms"),
        Figure("longest wait of a body of 70 KB", large.longest_first, "s", LONGEST_FIRST),
        Figure("streams that failed", seen.num_failures + large.num_failures, at_most=0),
        Figure("longest answer", longest, "s"),
        Figure("memory beyond the start", memory, "MiB", options.memory),
    ]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=60, help="MiB of a body, at most")
    parser.add_argument("--at-once", type=int, default=8, help="bodies at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="how often")
    parser.add_argument("--kinds", nargs="*", help="some of the kinds only")
    parser.add_argument("--longest", type=float, default=250.0, help="ms that a turn may take")
    parser.add_argument(
        "--busy", type=float, default=50.0, help="ms of a processor that a turn may take"
    )
    parser.add_argument(
        "--memory", type=float, default=384.0, help="MiB that may stay with the server afterwards"
    )
    parser.add_argument("--trace", action="store_true", help="print where slow turns are spent")


COMMAND = Command(
    help="sends bodies that are slow to read, and watches the turns of the event loop",
    run=run,
    add_arguments=_arguments,
    short={"size": 2, "at_once": 2, "rounds": 1, "longest": 250.0},
)
