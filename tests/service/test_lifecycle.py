"""Tests of `fastovms/service/lifecycle.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fastovms.api.admin import DOCS_PATHS, HEALTH_PATHS, ServerPhase, ServerStatus
from fastovms.api.served import ServedModel, ServedModels
from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.http.messages import Headers, Request
from fastovms.parts.limits import KeyBudgets
from fastovms.server_config import SecurityConfig, ServiceConfig
from fastovms.service import lifecycle
from fastovms.service.lifecycle import (
    FileWatch,
    KeyCheck,
    Lifecycle,
    LifecycleHooks,
    cors_policy,
    gates_for,
)
from fastovms.system.threads import ShutdownWaits
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import ByteTokenizer, FakeBackend

# Who is let in: by key, and at a time at which requests are served.


def asked(path: str = "/v1/models", key: str | None = None) -> Request:
    fields = [] if key is None else [("authorization", f"Bearer {key}")]
    return Request("GET", path, headers=Headers(fields))


def guard(
    environ: dict[str, str], phase: ServerPhase = ServerPhase.SERVING, **security: object
) -> KeyCheck:
    status = ServerStatus.serving(ServedModels([]))
    status.phase = phase
    return KeyCheck(status, SecurityConfig(**security), environ)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "phase", "request_", "status"),
    [
        ({}, ServerPhase.SERVING, asked(), None),
        ({"API_KEY": "a"}, ServerPhase.SERVING, asked(), 401),
        ({"API_KEY": "a"}, ServerPhase.SERVING, asked(key="a"), None),
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked(key="a"), 503),
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked(), 401),  # strangers learn nothing
        ({}, ServerPhase.CLOSING, asked(), 503),
        *[({"API_KEY": "a"}, ServerPhase.LOADING, asked(path), None) for path in HEALTH_PATHS],
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked("/metrics"), 401),
    ],
)
def test_guard_admits_by_phase_path_and_key(
    environ: dict[str, str], phase: ServerPhase, request_: Request, status: int | None
) -> None:
    keeper = guard(environ, phase)
    refusal = keeper(request_)
    assert (None if refusal is None else refusal.status) == status
    assert keeper.needs_key is bool(environ)


@pytest.mark.parametrize("path", DOCS_PATHS)
def test_description_of_the_api_needs_no_key_while_it_is_served(path: str) -> None:
    assert guard({"API_KEY": "a"})(asked(path)) is None
    refusal = guard({"API_KEY": "a"}, enable_docs=False)(asked(path))
    assert refusal is not None
    assert refusal.status == 401


def test_page_needs_no_key() -> None:
    keeper = KeyCheck(ServerStatus(), SecurityConfig(), {"API_KEY": "a"}, ["/", "/ui/1/main.js"])
    assert keeper(asked("/")) is None
    assert keeper(asked("/ui/1/main.js")) is None
    for path in ("/ui/1/other.js", "/v1/models"):
        refusal = keeper(asked(path))
        assert refusal is not None
        assert refusal.status == 401


def test_reload_reads_the_keys_again_or_keeps_those_before(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    keeper = guard({}, api_key_file=path)
    path.write_text("new\n")
    assert keeper(asked(key="old")) is None
    keeper.reload()
    assert keeper(asked(key="old")) is not None
    assert keeper(asked(key="new")) is None
    path.unlink()
    with pytest.raises(ConfigurationError):
        keeper.reload()
    assert keeper(asked(key="new")) is None


def test_reload_changes_the_limits_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a\n")
    made: list[KeyBudgets] = []

    def new_budgets() -> KeyBudgets:
        made.append(KeyBudgets(lambda: 0.0))
        return made[-1]

    config = SecurityConfig(api_key_file=path)
    keeper = KeyCheck(ServerStatus.serving(ServedModels([])), config, {}, (), new_budgets)
    request = asked(key="a")
    keeper(request)
    assert (request.caller.budget, made) == (None, [])
    path.write_text("a requests-per-minute=3\nb\n")
    keeper.reload()
    keeper(request)
    assert request.caller.budget is keeper.find_budget(request.caller.tenant) is not None
    unlimited = asked(key="b")
    keeper(unlimited)
    assert unlimited.caller.budget is None
    path.write_text("a requests-per-minute=0\n")
    keeper.reload()
    keeper(request)
    assert request.caller.budget is None
    assert len(made) == 1


@pytest.mark.parametrize(
    ("client", "fields", "is_admin"),
    [
        ("127.0.0.1:5", [], True),
        ("[::1]:5", [], True),
        ("", [], True),
        ("10.0.0.5:5", [], False),
        ("127.0.0.1:5", [("host", "localhost"), ("x-request-id", "a")], True),
        *(
            (client, [(name, "10.0.0.5")], False)
            for client in ("127.0.0.1:5", "")
            for name in (
                "Forwarded",
                "X-Forwarded-For",
                "X-Real-IP",
                "Via",
                "CF-Connecting-IP",
                "X-Envoy-External-Address",
                "Tailscale-User-Login",
            )
        ),
    ],
)
def test_client_of_this_machine_is_admin_without_keys(
    client: str, fields: list[tuple[str, str]], is_admin: bool
) -> None:
    request = Request("POST", "/v1/models/a/load", headers=Headers(fields), client=client)
    assert guard({})(request) is None
    assert request.caller.is_admin is is_admin
    request = Request("POST", "/v1/models/a/load", headers=asked(key="a").headers, client=client)
    assert guard({"API_KEY": "a"})(request) is None
    assert request.caller.is_admin is False


# Which checks a server has, by its flags and by whether it has keys.


EVIL, FRIEND = "http://evil.example", "https://app.example"


def statuses(
    config: SecurityConfig, *, needs_key: bool = False, is_local: bool = True
) -> list[int]:
    """Of a page of somebody, one of a friend, a page whose name leads here, and a client that
    uses the machine's name; 0 = let through."""
    cors = cors_policy(config, needs_key=needs_key)
    gates = gates_for(config, cors, needs_key=needs_key, tls=False, is_local=lambda: is_local)
    found = []
    for fields in (
        {"Host": "localhost:1", "Origin": EVIL},
        {"Host": "localhost:1", "Origin": FRIEND},
        {"Host": "evil.example", "Origin": EVIL},
        {"Host": f"{socket.gethostname()}:8000"},
    ):
        asked = Request("POST", "/v1/x", headers=Headers(fields.items()), client="127.0.0.1:1")
        refusals = [gate(asked) for gate in gates]
        found.append(next((refusal.status for refusal in refusals if refusal is not None), 0))
    return found


@pytest.mark.parametrize(
    ("fields", "without_key", "not_local", "with_key"),
    [
        ({}, [403, 403, 421, 0], [403, 403, 0, 0], [0, 0, 0, 0]),
        ({"allowed_origins": "*"}, [0, 0, 421, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
        ({"allowed_origins": FRIEND}, [403, 0, 421, 0], [403, 0, 0, 0], [403, 0, 0, 0]),
        ({"allowed_hosts": "*"}, [403, 403, 0, 0], [403, 403, 0, 0], [0, 0, 0, 0]),
        ({"allowed_hosts": "a,evil.example"}, [403, 403, 0, 0], [403, 403, 0, 0], [0, 0, 0, 0]),
        ({"allowed_hosts": "a"}, [403, 403, 421, 0], [403, 403, 421, 0], [0, 0, 421, 0]),
        ({"allowed_hosts": "a,*", "allowed_origins": "*"}, [0] * 4, [0] * 4, [0] * 4),
    ],
)
def test_gates_check_host_and_origin(
    fields: dict[str, str], without_key: list[int], not_local: list[int], with_key: list[int]
) -> None:
    config = SecurityConfig(**fields)  # type: ignore[arg-type]
    assert statuses(config) == without_key
    assert statuses(config, is_local=False) == not_local
    assert statuses(config, needs_key=True) == with_key


# A file that changes is noticed, one that is missing is not.


async def test_file_watch_notices_changes_but_not_a_missing_file(tmp_path: Path) -> None:
    path, other = tmp_path / "list", tmp_path / "other"
    path.write_text("a")
    changes: asyncio.Queue[str] = asyncio.Queue()
    watch = FileWatch(path, 0.005, lambda: changes.put_nowait(path.read_text()))
    watch.start(asyncio.get_running_loop())
    async with asyncio.timeout(60):
        other.write_text("replaced")
        os.replace(other, path)
        assert await changes.get() == "replaced"
        path.unlink()
        await asyncio.sleep(0.05)
        assert changes.empty()
        path.write_text("back")
        assert await changes.get() in ("", "back")
    watch.stop()


# A server from start to end, over fakes that note what is done to them, in which order.


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
        async with asyncio.timeout(60):
            await Lifecycle(
                Server(self.notes),  # type: ignore[arg-type]
                self.status,
                self.manager,  # type: ignore[arg-type]
                http,
                config,
                hooks,
                ShutdownWaits(http.drain_timeout),
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
async def test_signal_drains_the_server_and_closes_its_parts(
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


async def test_signal_does_not_wait_for_a_loading_model() -> None:
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


async def test_models_that_cannot_be_loaded_end_the_server() -> None:
    run = Run()

    def load() -> ServedModels:
        raise ConfigurationError("no such model")

    run.load = load
    with pytest.raises(ConfigurationError, match="no such model"):
        await run.run()
    assert run.notes == ["bind", "start", "drain 0.5", "close"]


async def test_failed_engine_ends_the_server_with_an_error() -> None:
    run = Run()
    run._at_once = lambda: run.backend.fail("out of order")
    with pytest.raises(EngineFailed, match="the engine has failed: out of order"):
        await run.run()
    assert run.notes[-3:] == ["close models", "drain 0.5", "close"]
    assert any(line.startswith("status failed: ") for line in run.manager.told)


async def test_engine_that_does_not_stop_is_abandoned(monkeypatch) -> None:
    monkeypatch.setattr(lifecycle, "_ENGINE_STOP_TIMEOUT", 0.05)
    run = Run(at_once=terminate)

    async def close() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(run.backend, "close", close)
    await run.run()
    assert run.backend.failure == "it does not stop"
    assert run.notes[-1] == "close"


async def test_failed_reload_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    reloaded: list[str] = []

    def refuse() -> None:
        raise ConfigurationError("no such file")

    run = Run(at_once=lambda: send(signal.SIGHUP))
    run.reloads = [refuse, lambda: reloaded.append("keys"), terminate]
    await run.run()
    assert reloaded == ["keys"]
    assert "cannot reload: no such file" in caplog.text
    assert [line.split()[0] for line in run.manager.told].count("ready") == 2
    assert "reloading" in run.manager.told


async def test_server_is_ready_once_the_engines_are_warm() -> None:
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
async def test_engines_that_never_become_warm_are_closed(monkeypatch, fails: bool) -> None:
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


async def test_shutdown_abandons_what_hangs(monkeypatch, caplog) -> None:
    run, go = Run(at_once=terminate), threading.Event()
    run.models.close = lambda: go.wait(60) and None

    async def end() -> None:
        await asyncio.Event().wait()

    run._end = end  # type: ignore[method-assign]
    run.drain_timeout = 0.05
    monkeypatch.setattr("fastovms.system.threads._LEAST", 0.0)
    await run.run()
    go.set()
    assert "shutdown: loading and unloading takes too long and is abandoned" in caplog.text
    assert "shutdown: closing the models takes too long and is abandoned" in caplog.text
