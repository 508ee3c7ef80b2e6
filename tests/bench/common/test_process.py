from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARK = """
import time
from bench.common.process import server_process

with server_process(["-m", "bench.null_engine.null_server"]) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_that_is_ended_leaves_no_server(end: signal.Signals) -> None:
    command = [sys.executable, "-c", BENCHMARK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as benchmark:
        assert benchmark.stdout is not None
        url = f"{benchmark.stdout.readline().strip()}/v1/models"
        with urlopen(url, timeout=60):
            pass
        benchmark.send_signal(end)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=60):
                pass
        except (URLError, OSError):
            return
        time.sleep(0.05)
    pytest.fail("the server still answers")
