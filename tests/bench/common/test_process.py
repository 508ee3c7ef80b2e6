from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from bench.common.process import listening_port

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
        with urlopen(url, timeout=10):
            pass
        benchmark.send_signal(end)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=10):
                pass
        except (URLError, OSError):
            return
        time.sleep(0.05)
    pytest.fail("the server still answers")


LISTENER = """
import socket, time

with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    time.sleep(600)
"""


def test_the_port_that_a_process_listens_on_is_found():
    command = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert listening_port(process.pid) == port
        process.kill()
    assert listening_port(process.pid) is None
