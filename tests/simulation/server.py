"""One simulated process of the server: the real `serve._run`, over simulated threads, sockets and
models."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import signal
import ssl
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fastovms.api.served import AnyServed, KnownModel, ServedModel, ServedModels
from fastovms.app import loading, serve, supply
from fastovms.app.paged import engine_extensions
from fastovms.app.state_opening import open_store
from fastovms.app.supply import ModelSupply
from fastovms.backends.engine_thread import StepReport
from fastovms.backends.paged import backend
from fastovms.backends.paged.backend import BackendParts, PagedBackend, SharedCores
from fastovms.config import EncoderConfig, EngineConfig
from fastovms.errors import ConfigurationError, StateFailed
from fastovms.http import listeners, wire
from fastovms.http.listeners import BoundSockets, Listener, TlsCredentials
from fastovms.http.server import HttpServer
from fastovms.http.websocket import WebSocket
from fastovms.params import Task
from fastovms.parts.batches import records, store
from fastovms.parts.batches import service as batches_service
from fastovms.parts.batches.service import BatchService
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.parts.prefix_cache import directory as prefix_cache
from fastovms.parts.prefix_cache import stored_prefixes
from fastovms.parts.prefix_cache.directory import BlockDirectory, open_block_directory
from fastovms.parts.prefix_cache.engine import PrefixDirectory, StoredPrefixes
from fastovms.parts.prefix_cache.stored_prefixes import PrefixFiles
from fastovms.parts.responses import service as responses_service
from fastovms.parts.responses import socket
from fastovms.parts.responses.background import BackgroundRuns
from fastovms.parts.several_models.model_pool import ModelPlan
from fastovms.parts.speech.served import ServedSpeech
from fastovms.server_config import ModelConfig, PrefixCacheConfig, ResidencyConfig, StateConfig
from fastovms.service import lifecycle
from fastovms.state.database import Operation, OperationOutcome, StateBounds
from fastovms.state.operations import Operations
from fastovms.state.running_responses import Replica
from fastovms.state.sqlite import location
from fastovms.state.sqlite.database import Database
from fastovms.state.state_store import StateStore
from fastovms.state.tables import Tables
from fastovms.system.disk import lock_file
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.chat_models import chat_model
from tests.fakes import ByteTokenizer
from tests.simulation.disk import Disk, cut_off
from tests.simulation.encoders import ENCODERS, CheckedTurn, SimEncoderBackend, served_encoder
from tests.simulation.grammars import COMPILER, SimGrammars
from tests.simulation.kernels import Switch, model_with_kernels
from tests.simulation.loop import Numbered, SimLoop
from tests.simulation.model import Pace, model_info
from tests.simulation.network import Flow, Line, Link
from tests.simulation.prompt_cache import PROMPT_CACHE, STATE_DIR, tear_files
from tests.simulation.reloads import BROKEN, VARIANTS, Operator, weights_name
from tests.simulation.speech import (
    SPEECH,
    SimPeer,
    SimSpeechBackend,
    install_speech,
    served_speech,
)
from tests.simulation.tls import ListeningSocket, TlsFlow
from tests.simulation.world import Process, World, changed, current, running

MODELS: Final = ("sim", "other", "third")

_MOST_VAIN: Final = 14
"""How many steps the engine may compute for requests that are over: those that were under way."""


class _Connection(Numbered, listeners._AcceptedConnection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.number = transport.get_extra_info("link").number
        super().connection_made(transport)


class Port:
    """Where clients connect: passes connections on to one of the servers that listen.

    Attributes:
        new_context: returns the context of a client's TLS; None = connections are plain.
        on_status: see `ClientConnection`.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.links: list[Link] = []
        self.left_open: list[Database] = []
        self.new_context: Callable[[], ssl.SSLContext] | None = None
        self.on_status: Callable[[str, float, int], None] = lambda *_: None
        self.accepts: dict[SimServer, Callable[[Link], None]] = {}

    def connect(self, line: Line) -> Link:
        flow = Flow if self.new_context is None else TlsFlow
        link = Link(self.world, len(self.links) + 1, line, self._arrive, flow)
        self.links.append(link)
        return link

    def close(self) -> None:
        """Closes the databases of killed servers, whose callbacks hold the world in memory."""
        for database in self.left_open:
            database._connection.close()

    def _arrive(self, link: Link) -> None:
        if not self.accepts:
            link.refuse()
            return
        link.owner = self.world.chance.choice(list(self.accepts))
        self.accepts[link.owner](link)


class SimHttpServer(HttpServer):
    """Listens at a port of the simulation."""

    def bind(self) -> None:
        if self._listeners:
            return
        self._server = server = _own_server()
        self._port, server.http = server.port, self
        self._queued: deque[Link] = deque()
        self.addresses = ["http://127.0.0.1:8000"]
        self.is_local = True
        self._socket = ListeningSocket(self._take)
        self._listeners = [Listener(self._socket, self.addresses[0])]  # type: ignore[arg-type]
        if self._config.tls_certificate is not None:
            self._tls = TlsCredentials(self._config.tls_certificate, self._config.tls_key)

    def _take(self) -> Link | None:
        if not self._queued:
            return None
        self._server.check_descriptors()
        link = self._queued.popleft()
        if self._queued and self._state is not None:  # the system tells it again in the next pass
            loop: Any = self._state.loop
            loop.make_readable(self._socket)
        return link

    async def start(self) -> None:
        await super().start()
        assert self._state is not None
        loop: Any = self._state.loop

        def accept(link: Link) -> None:
            self._queued.append(link)
            loop.make_readable(self._socket)

        self._port.accepts[self._server] = accept

    async def _accept_queued(self, seconds: float) -> None:
        while self._queued and not self._server.is_short:  # noqa: ASYNC110 (as the real one)
            await asyncio.sleep(0)

    def _stop_listening(self) -> None:
        if self._listeners:
            self._port.accepts.pop(self._server, None)
        if self._acceptor is not None:
            self._acceptor.close()
        for link in self._queued:
            link.refuse()
        self._queued.clear()
        self._listeners.clear()


class _NoCollector(Collector):
    def __init__(self, registry: None) -> None:
        pass

    def collect(self) -> list[Metric]:
        return []


class _AccessLog:
    def __init__(self, world: World) -> None:
        self._world = world

    def write_line(self, line: str) -> None:
        self._world.note("access", line)

    def reopen(self) -> None:
        pass


class _ProcessorTime:
    """The process can always run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._process = _own_server().process
        self._at = self._process.monotonic()

    def take(self, interval: float) -> float:
        _own_server().check_descriptors()
        now = self._process.monotonic()
        seconds, self._at = now - self._at, now
        return min(interval, seconds)


def install_server() -> None:
    """Replaces what a server has of the system and no thread makes."""
    install_speech()
    serve.HttpServer = SimHttpServer  # type: ignore[misc]
    serve.find_trim = lambda: lambda: None  # type: ignore[assignment]
    serve.memory_left = lambda **_: float("inf")
    serve.boot_time = lambda: _own_server().process.monotonic()
    serve.load_extensions = lambda group, name=None: []  # type: ignore[assignment]
    serve.os = SimpleNamespace(  # type: ignore[attr-defined]
        environ={"HOME": "/nonexistent"}, getpid=lambda: 1, write=lambda file, data: len(data)
    )
    lifecycle.signal = SimpleNamespace(  # type: ignore[attr-defined]
        **{**vars(signal), "signal": lambda *given: _own_server().set_handler(*given)}
    )
    backend.forget_compiler = lambda: None
    backend.find_trim = lambda: lambda: None  # type: ignore[assignment]
    stored_prefixes.MIN_PROMPT_TOKENS = 16  # type: ignore[misc]
    supply.plan_models = _plan_models
    supply.check_models = lambda configs: None
    supply._memory_size = lambda *_: 1
    supply.freeze_objects = lambda: None
    supply.gc = SimpleNamespace(unfreeze=lambda: None)  # type: ignore[attr-defined]
    supply.find_trim = lambda: lambda: None
    supply.OneModelLoader._available = lambda *_: 1 << 30  # type: ignore[method-assign]
    serve.greeting = _greeting
    serve.open_store = _open_store
    responses_service.BackgroundRuns = _Runs  # type: ignore[misc]
    batches_service.BatchService = _Batches  # type: ignore[misc]
    location.Database = SimDatabase  # type: ignore[misc]
    for module in (location, store, prefix_cache, records):
        module.lock_file = _lock_file  # type: ignore[attr-defined]
    listeners._AcceptedConnection = _Connection  # type: ignore[misc]
    socket._EventStream = _Events  # type: ignore[misc]
    wire.Wire._num_queued = _num_queued  # type: ignore[method-assign]
    serve.ProcessCollector = _NoCollector  # type: ignore[misc, assignment]
    lifecycle.ProcessorTime = _ProcessorTime  # type: ignore[misc]


def _plan_models(configs: Sequence[ModelConfig], residency: ResidencyConfig) -> list[ModelPlan]:
    return [
        ModelPlan(config, KnownModel(config.name, (), 1_700_000_000, task=_task(config.name)), 1, 1)
        for config in configs
    ]


def _task(name: str) -> Task:
    if name == SPEECH:
        return Task.SPEECH
    return ENCODERS[name].task if name in ENCODERS else Task.TEXT_GENERATION


def _greeting(*_: object, **__: object) -> str:
    _own_server().is_ready = True
    return ""


def _num_queued(self: wire.Wire, request: int) -> int | None:
    transport = self._transport
    link = None if transport is None else transport.get_extra_info("link")
    if link is None:
        return None
    return link.up.num_unread if request == termios.FIONREAD else link.down.num_queued


class _Runs(BackgroundRuns):
    def __init__(self, max_num: int) -> None:
        super().__init__(max_num)
        _own_server().runs.append(self)


class _Batches(BatchService):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        _own_server().batches = self


class _Events(socket._EventStream):
    """Checks that the memory of a message is counted until the end of its turn."""

    def __init__(self, connection: WebSocket, turn: socket.Turn) -> None:
        super().__init__(connection, turn)
        self._size = len(turn.message)

    def send(self, data: bytes) -> None:
        held = self._socket._budget.held(self._socket._sender)
        if held < self._size:
            _own_server().world.fail("memory", f"{held} bytes held, {self._size} in use")
        super().send(data)


class SimBackend(PagedBackend):
    """Checks the engine's books after each step."""

    name = ""
    num_vain = num_overheard = 0

    @property
    def is_live(self) -> bool:
        return self.failure is None and not self._closing.is_set()

    def _publish(self, step: StepReport) -> None:
        stored = [one.engine for one in self.extensions if isinstance(one, StoredPrefixes)]
        if not any(one is not None and one._restorer.holds_blocks for one in stored):
            try:
                self.engine.check()
            except AssertionError as error:
                _own_server().world.fail("books", str(error), error)
        self._check_wanted()
        super()._publish(step)

    def _check_wanted(self) -> None:
        """Checks that the engine computes only for requests that are still wanted, and that events
        are logged only for clients that are still connected."""
        server, known = _own_server(), self._requests._requests
        unknown = self.engine._requests.keys() - known.keys()
        num_wanted = server.http.num_requests + sum(runs.num_running for runs in server.runs)
        if server.batches is not None and server.batches._runner is not None:
            num_wanted += server.batches._runner._parts.slots.num_used
        is_vain = bool(unknown) or len(known) > num_wanted
        self.num_vain = self.num_vain + 1 if is_vain else 0
        if self.num_vain == _MOST_VAIN:
            server.world.fail("vain", f"{len(known)} requests, {num_wanted} wanted, {unknown}")
        logs = [run.log for runs in server.runs for run in runs.all()]
        num_listeners = sum(len(log._listeners) for log in logs)
        is_overheard = num_listeners > server.http.num_requests
        self.num_overheard = self.num_overheard + 1 if is_overheard else 0
        if self.num_overheard == _MOST_VAIN:
            server.world.fail("kept", f"{num_listeners} readers of {server.http.num_requests}")


@dataclass(frozen=True)
class Settings:
    """How a server is configured.

    Attributes:
        num_blocks: the number of blocks of its cache.
        high_water: the bytes that a connection may buffer before its stream is held back.
        disk_seconds: how long a transaction of the state takes, at most twice.
        prompt_cache: the bytes of its prompt cache on disk; 0 = none.
        keys: the API keys that clients ever use; none = they need no key.
        has_files: whether keys and models are in files that an operator changes.
        has_tls: whether it speaks TLS.
        poll_interval: seconds after which it looks for a change of the list of models; 0 = never.
        encoders: the names of its models that encode texts or read speech, which are on the list of
            models if it has one.
        num_segments: in how many segments an encoder computes.
        switch: when the steps of its models move to kernels, or from them; None = they do not.
    """

    block_size: int
    num_blocks: int
    max_model_len: int
    pace: Pace
    engine: EngineConfig
    disk_seconds: float = 0.0
    high_water: int = 65536
    num_replicas: int = 1
    drifts: tuple[float, ...] = (0.0,)
    num_models: int = 1
    max_loaded_models: int | None = None
    idle_unload: float = 0.0
    load_seconds: float = 0.0
    prompt_cache: int = 0
    keys: tuple[str, ...] = ()
    has_files: bool = False
    has_tls: bool = False
    poll_interval: float = 0.0
    encoders: tuple[str, ...] = ()
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    num_segments: int = 1
    switch: Switch | None = None
    config: serve.ServerConfig = field(default_factory=lambda: serve.ServerConfig(models=()))

    @property
    def loads_on_demand(self) -> bool:
        return bool(self.max_loaded_models or self.idle_unload)

    def described(self) -> str:
        """Returns what differs from the usual, for people."""
        parts = {"engine": self.engine, "encoder": self.encoder, "config": self.config.http}
        return str(changed(self) | {name: changed(part) for name, part in parts.items()})


_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class SimServer:
    """A server process, from its start to its end.

    Attributes:
        backends: the backends of all models that it has loaded, without encoders.
        encoders: the models that it has loaded that encode texts or read speech.
        peers: the processes of its models of speech.
        fault, encoder_fault: how its models or encoders fail; "" = they do not.
        outcome: None = it runs or was killed; "" = it has ended in order; else the error.
        is_short: whether it has no descriptors left.
    """

    def __init__(
        self,
        world: World,
        port: Port,
        disk: Disk,
        settings: Settings,
        operator: Operator,
        name: str,
        **clock: float,
    ) -> None:
        self.world = world
        self.operator = operator
        self.disk = disk
        self.locks: list[tuple[int, int]] = []
        self.port = port
        self.settings = settings
        self.process = Process(world, name, **clock)
        self.process.server = self  # type: ignore[attr-defined]
        self.backends: list[SimBackend] = []
        self.encoders: list[ServedEncoder | ServedSpeech] = []
        self.peers: list[SimPeer] = []
        self.cores: SharedCores | None = None
        self.turn: CheckedTurn | None = None
        self.fault = self.encoder_fault = ""
        self.is_cut = self.is_ready = self.is_short = False
        self.num_reloads = 0
        self.supply: ModelSupply | None = None
        self.runs: list[BackgroundRuns] = []
        self.batches: BatchService | None = None
        self.store: StateStore | None = None
        self.outcome: str | None = None
        self.loop: SimLoop | None = None
        self.http: Any = None
        self.handlers: dict[int, Any] = {}
        self.main = self.process.start(self._run, "loop")

    def set_handler(self, number: int, handler: Any) -> None:
        self.handlers[number] = handler

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._signal(signal.SIGTERM)

    def reload(self) -> None:
        """Sends SIGHUP. `num_reloads` increases when its handler has run."""
        self._signal(signal.SIGHUP)
        if self.loop is not None:
            self.loop.inject(self.loop.call_soon, self._note_reload)

    def _signal(self, number: int) -> None:
        handler = self.handlers.get(number)
        if callable(handler) and self.loop is not None:
            self.loop.inject(handler, number, None)

    def _note_reload(self) -> None:
        self.num_reloads += 1

    def kill(self, *, loses_power: bool = False) -> None:
        """Ends the process as SIGKILL does, or a loss of power."""
        self.port.accepts.pop(self, None)
        for link in self.port.links:
            if link.owner is self:
                link.server_resets()
        cut_off(self.process)
        if self.settings.num_replicas == 1:
            self.disk.crash(loses_power=loses_power)
        self.process.kill()
        if loses_power and self.settings.prompt_cache:
            tear_files(self.world.chance)
        for descriptor, inode in self.locks:
            with suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)

    def check_descriptors(self) -> None:
        """Raises OSError if the system gives the server no descriptor."""
        if self.is_short:
            raise OSError(self.world.chance.choice(_SHORTAGES), "none is left")

    def wake(self, topic: str) -> None:
        """Tells the server of a change of the shared state."""
        if self.store is not None and self.loop is not None and not self.is_cut:
            self.loop.inject(self.store._watchers.wake, topic)

    # The server's thread

    def _run(self) -> None:
        def new_loop() -> SimLoop:
            self.loop = SimLoop(self.process)
            return self.loop

        log = _AccessLog(self.world)
        config = self.settings.config
        if self.settings.encoders:
            cores = SharedCores.create()
            self.turn = CheckedTurn(
                self.world, cores.engines, lambda: any(peer.runs for peer in self.peers)
            )
            self.cores = replace(cores, turn=self.turn)
        wire._HIGH_WATER = self.settings.high_water
        wire._LOW_WATER = self.settings.high_water // 4
        directory = str(STATE_DIR / self.process.name.replace(" ", "-"))
        if self.settings.num_replicas > 1:
            config = replace(config, state=replace(config.state, state_dir=directory))
        if self.settings.keys and self.settings.has_files:
            in_file = replace(config.security, api_keys=(), api_key_file=self.operator.key_file)
            config = replace(config, security=in_file)
        if self.settings.has_tls:
            files = (str(self.operator.certificate_file), str(self.operator.private_key_file))
            http = replace(config.http, tls_certificate=files[0], tls_key=files[1])
            config = replace(config, http=http)
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                if self.settings.num_models > 1:
                    self.supply = self._make_supply()
                load = self._load if self.supply is None else self.supply.load
                bound = BoundSockets((), are_inherited=False)
                runner.run(serve._run(config, log, log, None, load, self.supply, bound))  # type: ignore[arg-type]
            self.outcome = ""
        except Exception as error:
            self.outcome = f"{type(error).__name__}: {error}"
        self.world.note("server ends", self.outcome)

    def _load(self) -> ServedModels:
        blocks = self._open_blocks()
        encoders = map(self.make_encoder, self.settings.encoders)
        models = _served([self.make_model(MODELS[0], blocks), *encoders])
        models.close = partial(supply._close, models.close, blocks)
        return models

    def _open_blocks(self) -> BlockDirectory | None:
        size = self.settings.prompt_cache
        return open_block_directory(PrefixCacheConfig(PROMPT_CACHE, size), None)

    def _make_supply(self) -> ModelSupply:
        settings, operator = self.settings, self.operator

        def load_models(
            models: Sequence[ModelConfig], *, prefixes: PrefixDirectory | None, **_: object
        ) -> ServedModels:
            self.world.sleep(settings.load_seconds)
            blocks = None if prefixes is None else prefixes.blocks
            if any(model.path.name == BROKEN for model in models):
                raise ConfigurationError("the model is broken")
            names = [(model.name, model.path.name) for model in models]
            return _served(
                self.make_encoder(*name)
                if name[0] in settings.encoders
                else self.make_model(name[0], blocks, name[1])
                for name in names
            )

        residency = ResidencyConfig(
            max_loaded_models=settings.max_loaded_models,
            idle_unload=settings.idle_unload,
            poll_interval=settings.poll_interval,
        )
        return ModelSupply(
            operator.read_list(),
            operator.find,
            load_models,
            residency,
            open_blocks=self._open_blocks,
            list_path=operator.list_file if settings.has_files else None,
            read_list=operator.read_list if settings.has_files else None,
        )

    def make_model(
        self, name: str, blocks: BlockDirectory | None, variant: str = VARIANTS[0]
    ) -> ServedModel:
        settings, weights = self.settings, weights_name(name, variant)
        model, extensions = model_with_kernels(
            settings.block_size, settings.pace, weights, settings.switch
        )
        model.fault = lambda: self.fault
        info = model_info(name, settings.max_model_len)
        engine = replace(settings.engine, cache_size=settings.num_blocks * 1024 / 2**30)
        stored = None if blocks is None else PrefixFiles(blocks, weights, weights.encode())
        served = SimBackend.from_model(
            model,
            info,
            engine,
            BackendParts(
                engine_extensions(model, engine, COMPILER),
                SimGrammars(COMPILER),
                [*extensions, *([] if stored is None else [StoredPrefixes(model, stored)])],
                cores=self.cores,
            ),
            available=1 << 30,
        )
        assert isinstance(served, SimBackend)
        served.name = name
        served.engine._maker._new_seed = lambda: self.world.secrets.getrandbits(64)
        self.backends.append(served)
        metrics = GenerationMetrics(info.name, served.stats)
        return ServedModel(served, ByteTokenizer(), metrics, chat=chat_model())

    def make_encoder(self, name: str, variant: str = VARIANTS[0]) -> ServedEncoder | ServedSpeech:
        weights = weights_name(name, variant)
        if name == SPEECH:
            served: ServedEncoder | ServedSpeech = served_speech(self, weights)
        else:
            served = served_encoder(self, name, weights)
        self.encoders.append(served)
        return served

    @property
    def live_encoders(self) -> list[SimEncoderBackend | SimSpeechBackend]:
        kinds = SimEncoderBackend | SimSpeechBackend
        backends = [encoder.backend for encoder in self.encoders]
        return [b for b in backends if isinstance(b, kinds) and b.is_live]


def _served(models: Iterable[AnyServed]) -> ServedModels:
    """Returns models that are closed as `load_models` does it."""
    models = list(models)
    closes = [model.tokenizing.close for model in models if isinstance(model, ServedEncoder)]
    closes += [model.decoding.close for model in models if isinstance(model, ServedSpeech)]
    return ServedModels(models, close=partial(loading._close_all, closes))


def _own_server() -> SimServer:
    thread = running()
    return thread.process.server  # type: ignore[attr-defined, no-any-return]


def _lock_file(path: Path) -> int:
    """Locks a file until the descriptor is closed or the simulated process is dead."""
    descriptor = lock_file(path)
    _own_server().locks.append((descriptor, os.fstat(descriptor).st_ino))
    return descriptor


class SimDatabase(Database):
    """Takes its time before and after a transaction."""

    def close(self) -> None:
        if _own_server().process.is_dead:
            # Closed at the end of the world: SQLite would write to what others still use.
            _own_server().port.left_open.append(self)
        else:
            super().close()

    def transact(self, operations: Sequence[Operation]) -> list[OperationOutcome]:
        world, seconds = _own_server().world, _own_server().settings.disk_seconds
        world.sleep(seconds * world.chance.random())
        if _own_server().is_cut:
            error = StateFailed("the state cannot be reached")
            return [OperationOutcome(error=error) for _ in operations]
        outcomes = super().transact(operations)
        world.note("transaction", len(operations), [repr(error) for _, error in outcomes if error])
        world.sleep(seconds * world.chance.random())
        return outcomes


class SharedDatabase(SimDatabase):
    """The connection of one of several replicas to the state that they share: SQLite in the place
    of PostgreSQL, by whose clock leases go. Notifications come late, or never."""

    def __init__(self, server: SimServer, replica: Replica, bounds: StateBounds) -> None:
        self._server = server
        release, Tables.release_running = Tables.release_running, lambda _: None
        try:
            super().__init__("/shared/state.db", bounds, server.world.unix_time)
        finally:
            Tables.release_running = release
        self._operations = Operations(self._tables, replica, self._notify)

    def _notify(self, topic: str) -> None:
        world = self._server.world
        for server in list(self._server.port.accepts):
            if world.chance.random() < 0.9:
                world.at(world.now + world.chance.random(), partial(server.wake, topic))


def _open_store(config: StateConfig, *given: Any) -> StateStore | None:
    server = _own_server()
    if server.settings.num_replicas == 1:
        server.store = open_store(config, *given)
        return server.store
    replica = Replica(secrets.token_hex(8), config.lease)
    bounds = StateBounds(config.max_age, config.max_objects, config.max_bytes)
    server.store = StateStore(SharedDatabase(server, replica, bounds), replica=replica)
    return server.store


class LogWatch(logging.Handler):
    """Takes the product's log into the trace, and holds errors with tracebacks against it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        thread = current()
        if thread is None or thread.process.is_dead:
            return
        text = record.getMessage().split("\n")[0].replace(str(STATE_DIR), "STATE")
        thread.world.note("log", record.levelname, record.name, text)
        if record.levelno >= logging.ERROR and not is_expected(record, text):
            error = record.exc_info[1] if record.exc_info else None
            thread.world.fail("log", f"{record.name}: {text}: {error!r}", error)


_EXPECTED = (
    "cannot accept connections",
    "engine watch: a check failed",
    " is lost: ",
    "the state cannot be",
    "response store: ",
    "cannot be stored",
    "the device is gone",
    "not finite",
    "not numbers",
    "engine: failed",
    "the engine has failed",
    "a step still runs",
    "the engines takes too long",
    "the model is broken",
    "the list of models is no JSON",
    "an API key must not contain blanks",
    "cannot use the TLS files",
    "since the response was begun",
    "and is started again",
)


def is_expected(record: logging.LogRecord, text: str) -> bool:
    error = repr(record.exc_info[1]) if record.exc_info else ""
    return any(part in text or part in error for part in _EXPECTED)
