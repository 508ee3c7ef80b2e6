"""How long a server takes from its start until it is ready, and until its first answer has come,
beside genai's pipeline in a fresh process of its own.

The first table is of starts that find nothing kept: with an empty cache directory fastovms compiles
its kernels, and compares the model with its exported graph. The second one is of starts that find
the kernels of an earlier one. Both sides start in turn, and the model's files are in the page
cache.

    python -m bench.start MODEL_DIR
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from bench.common.arguments import model_directory
from bench.common.genai_process import LONG_PROMPT, NUM_TOKENS, PROMPT, Started, genai_process
from bench.common.process import server_process
from bench.common.report import machine, median, ratio, table
from fastovms.setting import integer

_BEING_PREPARED = 'state="being prepared"'


@contextmanager
def started_server(
    model_dir: Path,
    cache_size: int,
    caches: Path,
    flags: Sequence[str] = (),
    *,
    has_kernels: bool = False,
) -> Iterator[Started]:
    """Starts a server that keeps what it keeps in the directory `caches`, and yields it once it has
    answered both prompts and, with `has_kernels`, has prepared its kernels or refused them."""
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = str(caches)
    start = time.perf_counter()
    arguments = ["-m", "fastovms", "serve", str(model_dir), "--cache-size", str(cache_size)]
    arguments += ["--access-log", "off", "--log-level", "warning", *flags]
    with server_process(arguments) as server:
        ready = time.perf_counter() - start
        _ask(server.url, PROMPT)
        answered = time.perf_counter() - start
        _ask(server.url, LONG_PROMPT)
        while has_kernels and _BEING_PREPARED in _metrics(server.url):
            time.sleep(1)
        yield Started(server.pid, ready, answered)


def _ask(url: str, prompt: str) -> None:
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    request = Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=600) as answer:
        answer.read()


def _metrics(url: str) -> str:
    with urlopen(f"{url}/metrics", timeout=60) as answer:
        return str(answer.read(), "utf-8")


def rows(ours: Sequence[Started], theirs: Sequence[Started]) -> list[list[object]]:
    """Returns a table's rows of starts in the same rounds."""
    result: list[list[object]] = []
    for name, column in (("ready", 1), ("first answer", 2)):
        a, b = ([float(start[column]) for start in side] for side in (ours, theirs))
        result.append([name, median(a), median(b), ratio(a, b)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.start", description=__doc__)
    parser.add_argument("model_dir", type=model_directory)
    parser.add_argument("--first", type=integer(0), default=1, help="rounds of first starts")
    parser.add_argument("--later", type=integer(1), default=5, help="rounds of later starts")
    parser.add_argument("--cache-size", type=int, default=1, help="of the KV cache, in GB")
    parser.add_argument("--serve-flag", action="append", default=[], metavar="FLAG")
    arguments = parser.parse_args()
    size, flags = arguments.cache_size, arguments.serve_flag
    print(machine())
    header = ("seconds until", "fastovms", "genai", "ratio")
    for title, num_rounds, is_first in (
        ("first starts", arguments.first, True),
        ("later starts", arguments.later, False),
    ):
        ours, theirs = [], []
        with tempfile.TemporaryDirectory() as kept:
            if not is_first:
                path = Path(kept)
                with started_server(arguments.model_dir, size, path, flags, has_kernels=True):
                    pass
            for _ in range(num_rounds):
                with genai_process(arguments.model_dir, size) as process:
                    theirs.append(process)
                with tempfile.TemporaryDirectory() as fresh:
                    caches = Path(fresh if is_first else kept)
                    with started_server(arguments.model_dir, size, caches, flags) as server:
                        ours.append(server)
        if ours:
            print(f"\n{title}\n{table(header, rows(ours, theirs))}", flush=True)


if __name__ == "__main__":
    main()
