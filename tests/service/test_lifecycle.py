"""A server from start to end, over fakes that note what is done to them, in which order."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fastovms.api.admin.status import ServerPhase, ServerStatus
from fastovms.api.serving.served import ServedModel, ServedModels
from fastovms.config.http_config import HttpConfig
from fastovms.config.service_config import ServiceConfig
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.service import lifecycle
from fastovms.service.lifecycle import Lifecycle, LifecycleHooks
from fastovms.system.last_waits import LastWaits
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import ByteTokenizer, FakeBackend

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Puts the handlers of signals back, which a server leaves ignored."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


class Server:
    num_connections = 3

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def bind(self) -> None:
        self._notes.append("bind")

    async def start(self) -> None:
        self._notes.append("start")

    async def drain(self, seconds: float) -> None:
        self._notes.append(f"drain {seconds:g}")

    async def close(self) -> None:
        self._notes.append("close")


class Manager:
    """In the place of `Notifier`."""

    watchdog_interval = None

    def __init__(self) -> None:
        self.told: list[str] = []

    def extend_timeout(self, seconds: float) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *words: self.told.append(" ".join((name, *words)))


class Run:
    """One life of a server.

    Args:
        at_once: called when the models can be asked.
    """

    def __init__(self, *, at_once: Callable[[], None] = lambda: None, early: bool = True) -> None:
        self.notes: list[str] = []
        self.backend = FakeBackend(lambda request, index: ())
        self.manager = Manager()
        self.status = ServerStatus()
        self.load = lambda: self.models
        self.reloads: list[Callable[[], None]] = []
        metrics = GenerationMetrics("fake", self.backend.stats)
        model = ServedModel(self.backend, ByteTokenizer(), metrics)
        self.models = ServedModels([model], close=lambda: self.notes.append("close models"))
        self._at_once, self._early = at_once, early
        self.drain_timeout = 5.0

    async def run(self) -> None:
        hooks = LifecycleHooks(
            load=lambda: self.load(),
            on_loaded=lambda models: self.notes.append("loaded"),
            announce=lambda models: self._announce(),
            reloads=self.reloads,
            drains=[self._drain],
            ends=[self._end],
            trouble=lambda: "trouble",
        )
        http = HttpConfig(drain_timeout=self.drain_timeout, drain_grace=0.5)
        config = ServiceConfig(failure_grace=0.0, engine_timeout=0.0)
        async with asyncio.timeout(20):
            await Lifecycle(
                Server(self.notes),  # type: ignore[arg-type]
                self.status,
                self.manager,  # type: ignore[arg-type]
                http,
                config,
                hooks,
                LastWaits(http.drain_timeout),
                listens_early=self._early,
            ).run()

    def _announce(self) -> None:
        self.notes.append("announce")
        self._at_once()

    async def _end(self) -> None:
        self.notes.append("end")

    async def _drain(self, seconds: float) -> None:
        assert self.drain_timeout - 1 < seconds <= self.drain_timeout
        self.notes.append(f"drain more ({self.status.phase.name})")


def send(number: signal.Signals) -> None:
    """Calls the handler of a signal, as Python does when the signal comes. No real one is sent to
    the process that runs all tests: whole servers get them in `tests/test_process.py`."""
    handler = signal.getsignal(number)
    assert callable(handler)
    handler(number, None)


def terminate() -> None:
    send(signal.SIGTERM)


@pytest.mark.parametrize(
    ("early", "beginning"),
    [
        (True, ["bind", "start", "loaded", "announce"]),
        (False, ["bind", "loaded", "start", "announce"]),
    ],
)
async def test_a_signal_drains_what_runs_and_then_all_is_closed(
    early: bool, beginning: list[str]
) -> None:
    run = Run(at_once=terminate, early=early)
    await run.run()
    assert run.notes[:4] == beginning
    assert run.notes[4].startswith("drain ")
    assert run.notes[5:] == ["drain more (LEAVING)", "end", "close models", "drain 0.5", "close"]
    assert run.status.phase is ServerPhase.CLOSING
    kinds = dict.fromkeys(line.split()[0] for line in run.manager.told)
    assert list(kinds) == ["status", "ready", "stopping"]
    assert run.manager.told[1] == (
        "ready serving fake: 0 running, 0 waiting, 3 connections; trouble"
    )


async def test_a_signal_does_not_wait_for_a_model_that_loads() -> None:
    run, loads = Run(), threading.Event()

    def load() -> ServedModels:
        loads.set()
        terminate()
        threading.Event().wait(0.2)
        return run.models

    run.load = load
    await run.run()
    assert loads.is_set()
    assert run.notes == ["bind", "start", "drain 0.5", "close"]
    assert run.manager.told[-1] == "stopping stopped while loading"


async def test_models_that_cannot_be_loaded_end_it() -> None:
    run = Run()

    def load() -> ServedModels:
        raise ConfigurationError("no such model")

    run.load = load
    with pytest.raises(ConfigurationError, match="no such model"):
        await run.run()
    assert run.notes == ["bind", "start", "drain 0.5", "close"]


async def test_an_engine_that_fails_ends_it_with_an_error() -> None:
    run = Run()
    run._at_once = lambda: run.backend.fail("out of order")
    with pytest.raises(EngineFailed, match="the engine has failed: out of order"):
        await run.run()
    assert run.notes[-3:] == ["close models", "drain 0.5", "close"]
    assert any(line.startswith("status failed: ") for line in run.manager.told)


async def test_an_engine_that_does_not_stop_is_left_behind(monkeypatch) -> None:
    monkeypatch.setattr(lifecycle, "_ENGINE_STOP_TIMEOUT", 0.05)
    run = Run(at_once=terminate)

    async def close() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(run.backend, "close", close)
    await run.run()
    assert run.backend.failure == "it does not stop"
    assert run.notes[-1] == "close"


async def test_what_can_be_is_reloaded(caplog: pytest.LogCaptureFixture) -> None:
    reloaded: list[str] = []

    def refuse() -> None:
        raise ConfigurationError("no such file")

    run = Run(at_once=lambda: send(signal.SIGHUP))
    run.reloads = [refuse, lambda: reloaded.append("keys"), terminate]
    await run.run()
    assert reloaded == ["keys"]
    assert "not reloaded: no such file" in caplog.text
    assert [line.split()[0] for line in run.manager.told].count("ready") == 2
    assert "reloading" in run.manager.told


async def test_it_is_ready_once_the_engines_are_warm() -> None:
    run = Run(at_once=terminate)
    run.backend.warm.clear()
    running = asyncio.ensure_future(run.run())
    await asyncio.sleep(0.05)
    assert run.status.unready == "the model is loading"
    assert "loaded" not in run.notes
    run.backend.warm.set()
    await running
    assert "announce" in run.notes


@pytest.mark.parametrize("fails", [False, True])
async def test_engines_are_closed_that_never_become_warm(monkeypatch, fails: bool) -> None:
    run, closed = Run(), asyncio.Event()
    run.backend.warm.clear()

    async def close() -> None:
        closed.set()

    monkeypatch.setattr(run.backend, "close", close)
    running = asyncio.ensure_future(run.run())
    await asyncio.sleep(0.05)
    if fails:
        run.backend.failure = "out of order"
        run.backend.warm.set()
        with pytest.raises(EngineFailed, match="out of order"):
            await running
    else:
        terminate()
        await running
        assert run.manager.told[-1] == "stopping stopped while loading"
    assert closed.is_set()
    assert "loaded" not in run.notes


async def test_a_shutdown_leaves_behind_what_hangs(monkeypatch, caplog) -> None:
    run, go = Run(at_once=terminate), threading.Event()
    run.models.close = lambda: go.wait(20) and None

    async def end() -> None:
        await asyncio.Event().wait()

    run._end = end  # type: ignore[method-assign]
    run.drain_timeout = 0.05
    monkeypatch.setattr("fastovms.system.last_waits._LEAST", 0.0)
    start = time.monotonic()
    await run.run()
    go.set()
    assert time.monotonic() - start < 10
    assert "shutdown: loading and unloading takes too long and is left behind" in caplog.text
    assert "shutdown: closing the models takes too long and is left behind" in caplog.text
