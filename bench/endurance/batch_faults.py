"""Kills a server repeatedly while a batch runs. Each line must get exactly one result."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.request import Request, urlopen

from bench.endurance.json_client import LOST, JsonClient
from bench.endurance.server import MODEL, ServerUnderTest, server_under_test
from bench.figures.command import Command
from bench.figures.figure import Figure

_URL: Final = "/v1/completions"
_INTERVAL: Final = 0.1
"""The seconds between two requests for the batch's state."""

_TIMEOUT: Final = 120.0
_BOUNDARY: Final = "of-the-upload"


@dataclass(slots=True)
class KilledBatch:
    """The result of a batch whose server was killed.

    Attributes:
        num_kills: servers that were killed with SIGKILL while lines were unfinished.
        num_answered: lines whose result has status 200.
        num_missing: lines without a result.
        num_repeated: second results of a line.
        num_others: results with another status, or of an unknown line.
        longest_start: the longest time until a restarted server was ready, in seconds.
        seconds: the duration of the batch, including restarts.
    """

    num_kills: int = 0
    num_answered: int = 0
    num_missing: int = 0
    num_repeated: int = 0
    num_others: int = 0
    longest_start: float = 0.0
    seconds: float = 0.0


def run_killed(
    server: ServerUnderTest, num_lines: int, num_kills: int, random: Random
) -> KilledBatch:
    """Runs a batch on a server that is killed after random numbers of finished lines."""
    found = KilledBatch()
    begin = time.monotonic()
    file = _upload(server, b"".join(_lines(num_lines)))
    made = {"input_file_id": file, "endpoint": _URL, "completion_window": "24h"}
    with closing(JsonClient(server.url)) as client:
        status, batch = client.ask("POST", "/v1/batches", made)
    if status != 200:
        raise SystemExit(f"no batch could be made: {batch}")
    path = f"/v1/batches/{batch['id']}"
    for num_done in sorted(random.randrange(num_lines) for _ in range(num_kills)):
        batch = _wait(server, path, num_done)
        if batch["completed_at"] is not None:
            break
        server.kill()
        found.num_kills += 1
        start = time.monotonic()
        server.start()
        found.longest_start = max(found.longest_start, time.monotonic() - start)
    batch = _wait(server, path, None)
    if batch["status"] != "completed":
        raise SystemExit(f"the batch is {batch['status']}: {batch['errors']}")
    found.seconds = time.monotonic() - begin
    results = Counter[str]()
    for id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
        with urlopen(f"{server.url}/v1/files/{id}/content", timeout=_TIMEOUT) as content:
            _count(content, results, found)
    ids = {_custom_id(number) for number in range(num_lines)}
    found.num_missing = len(ids - results.keys())
    found.num_repeated = results.total() - len(results)
    found.num_others += len(results.keys() - ids)
    return found


def _lines(count: int) -> Iterator[bytes]:
    for number in range(count):
        body = {"model": MODEL, "prompt": f"Once {number}", "max_tokens": 1}
        line = {"custom_id": _custom_id(number), "method": "POST", "url": _URL, "body": body}
        yield json.dumps(line).encode() + b"\n"


def _custom_id(number: int) -> str:
    return f"line-{number}"


def _upload(server: ServerUnderTest, content: bytes) -> str:
    """Uploads a file for batches and returns its id."""
    form = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    data = form.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    request = Request(f"{server.url}/v1/files", data, headers)
    with urlopen(request, timeout=_TIMEOUT) as response:
        id: str = json.load(response)["id"]
        return id


def _wait(server: ServerUnderTest, path: str, num_done: int | None) -> dict[str, Any]:
    """Returns the batch when the given number of its lines is finished, or when it has ended."""
    with closing(JsonClient(server.url)) as client:
        try:
            while True:
                server.check_alive()
                _, batch = client.ask("GET", path)
                counts = batch["request_counts"]
                if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                    return batch
                if num_done is not None and counts["completed"] + counts["failed"] >= num_done:
                    return batch
                time.sleep(_INTERVAL)
        except LOST as error:
            raise SystemExit(f"the server is lost: {error}\n{server.tail}") from None


def _count(content: Any, results: Counter[str], found: KilledBatch) -> None:
    for line in content:
        result = json.loads(line)
        results[result["custom_id"]] += 1
        if (result["response"] or {}).get("status_code") == 200:
            found.num_answered += 1
        else:
            found.num_others += 1


def measure(options: argparse.Namespace) -> list[Figure]:
    with server_under_test("--cache-size", "0.1") as server:
        found = run_killed(server, options.lines, options.kills, Random(options.seed))
    return [
        Figure("lines", options.lines),
        Figure("kill -9 while they ran", found.num_kills, at_least=options.kills),
        Figure("lines answered", found.num_answered, at_least=options.lines),
        Figure("lines without a result", found.num_missing, at_most=0),
        Figure("results of a line that had one", found.num_repeated, at_most=0),
        Figure("results that are no answer", found.num_others, at_most=0),
        Figure("longest start", found.longest_start, "s", at_most=60),
        Figure("lines a second, starts included", options.lines / found.seconds),
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)


COMMAND = Command(
    help="kills it with SIGKILL while a batch runs, and counts the answers to each line",
    run=measure,
    add_arguments=_add_arguments,
    short=None,  # tests/test_batches.py is it
)
