"""Clients that keep responses and conversations through the balancer, and find out afterwards what
became of all that was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from bench.endurance.json_client import LOST
from bench.endurance.state_faults.state_client import Refused, StateClient
from bench.figures.figure import Figure

NUM_CLIENTS: Final = 4
_PAUSE: Final = 0.1
"""Seconds, on average, between a client's operations."""
_PATIENCE: Final = 15.0
"""Seconds after which what was promised must be found, and what runs in the background be over."""


class StateLoad:
    """Clients, each in a thread of its own while `running`.

    A client that is refused, or loses its connection, does no more until its promises were looked
    at: only then does it know again what is there.

    Attributes:
        broken: promises that were not kept.
        refusals: answers that were neither success nor what was asked for, and lost connections.
        num_checked: promises that were looked at, some of them several times.
    """

    def __init__(self, url: str, seed: int) -> None:
        self._random = Random(seed)
        self._clients = [
            StateClient(url, Random(self._random.random())) for _ in range(NUM_CLIENTS)
        ]
        self.broken: list[str] = []
        self.refusals: list[str] = []
        self.num_checked = 0
        self._checked: set[str] = set()

    @property
    def num_acknowledged(self) -> int:
        return sum(client.num_acknowledged for client in self._clients)

    @property
    def num_interrupted(self) -> int:
        """Background responses that were found failed."""
        return sum(client.num_interrupted for client in self._clients)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Works until the end of the block, and then to the end of each operation."""
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._work, args=(client, ended, Random(self._random.random())))
            for client in self._clients
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Returns when so many more operations are acknowledged. Raises SystemExit: they are not
        in time."""
        enough, deadline = self.num_acknowledged + count, time.monotonic() + seconds
        while self.num_acknowledged < enough:
            if time.monotonic() > deadline:
                raise SystemExit(f"fewer than {count} operations acknowledged in {seconds:g} s")
            time.sleep(0.01)

    def check(self, *, num_old: int | None = None) -> None:
        """Looks at what was promised; afterwards all clients can go on.

        Args:
            num_old: of each client's promises that were looked at before, how many are again;
                None = all.
        """
        for client in self._clients:
            old = [path for path in client.promises if path in self._checked]
            if num_old is not None:
                old = self._random.sample(old, min(num_old, len(old)))
            for path in [*(client.promises.keys() - self._checked), *old]:
                self._look(client, path)
            client.restart()

    def _look(self, client: StateClient, path: str) -> None:
        self.num_checked += 1
        self._checked.add(path)
        deadline = time.monotonic() + _PATIENCE
        while broken := client.check(path):
            if time.monotonic() > deadline:
                self.broken.append(broken)
                return
            time.sleep(0.1)  # a response in the background may still be running

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def figures(self) -> list[Figure]:
        for broken in self.broken[:5]:
            print(broken)
        return [
            Figure("operations acknowledged", self.num_acknowledged, at_least=1),
            Figure("promises looked at", self.num_checked, at_least=1),
            Figure("acknowledged, and not there", len(self.broken), at_most=0),
        ]

    def _work(self, client: StateClient, ended: threading.Event, random: Random) -> None:
        while not ended.wait(2 * _PAUSE * random.random()):
            try:
                client.step()
            except Refused as error:
                self.refusals.append(str(error))
                return
            except LOST as error:
                client.close()
                self.refusals.append(repr(error))
                return
