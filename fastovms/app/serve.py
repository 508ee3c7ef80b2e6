"""Runs the server: loads the models, adds the routes, listens."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from fastovms import __version__
from fastovms.api.admin import HealthRoutes, ServerStatus, StartWait, WorkItem
from fastovms.api.body import BodyReader
from fastovms.api.context import ApiContext
from fastovms.api.dialect import render_error
from fastovms.api.endpoint import ApiPaths
from fastovms.api.served import ServedModels
from fastovms.app.catalog import ModelFinder
from fastovms.app.compiling import CompileAhead
from fastovms.app.greeting import greeting
from fastovms.app.loading import load_models
from fastovms.app.paged import TunedCores
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.app.state_opening import open_store
from fastovms.app.supply import ModelSupply, ReadList, settle_memory
from fastovms.config import ApiConfig, HttpConfig
from fastovms.engine.model.devices import format_size
from fastovms.errors import ConfigurationError
from fastovms.extensions import ENDPOINTS, load_extensions
from fastovms.http.access_log import AccessLog, HttpMetrics
from fastovms.http.gates import ForwardedClients, JsonOnly
from fastovms.http.listeners import BoundSockets, Notifier, bind_sockets
from fastovms.http.messages import Observer, Request
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.batches.endpoints import (
    UPLOAD_ROUTES,
    BatchEndpoints,
    Batches,
    add_batch_routes,
    batch_work,
    refuse_line,
)
from fastovms.parts.batches.files import Files, Kept, path_for
from fastovms.parts.batches.input import InputChecker, LineSlots
from fastovms.parts.batches.runner import FOLDER as BATCH_FOLDER
from fastovms.parts.batches.runner import BatchParts, BatchRunner, LineCaller
from fastovms.parts.batches.store import FOLDER as FILE_FOLDER
from fastovms.parts.batches.store import FileStore
from fastovms.parts.media.document_process import PdfProcesses
from fastovms.parts.media.files import Documents
from fastovms.parts.openapi.page import DocsRoutes, add_docs_routes
from fastovms.parts.page.page import add_page_routes, read_page_files
from fastovms.parts.prefix_cache.directory import open_block_directory
from fastovms.parts.responses.background import BackgroundRuns, ResponsesState
from fastovms.parts.responses.resumption import LeaseKeeper, Resumer, RunRestorer
from fastovms.parts.several_models.model_pool import ModelCollector
from fastovms.parts.speech import endpoints as audio
from fastovms.server_config import (
    HTTP,
    MEDIA,
    PREFIX_CACHE,
    RESIDENCY,
    STATE,
    UPLOADS,
    BatchConfig,
    FilesConfig,
    MediaConfig,
    ModelSource,
    PrefixCacheConfig,
    RepositoryConfig,
    ResidencyConfig,
    SecurityConfig,
    ServiceConfig,
    StateConfig,
)
from fastovms.service.export import OvmsMetrics, span_tracer
from fastovms.service.lifecycle import Guard, Lifecycle, LifecycleHooks, cors_policy, gates_for
from fastovms.service.log_writer import LineWriter
from fastovms.service.watch import ChildCollector, LoopWatch, MemoryTrimmer
from fastovms.state.sqlite.database import IN_MEMORY
from fastovms.state.sqlite.location import default_directory
from fastovms.state.state_store import StateCollector
from fastovms.system.clock import SteadyClock, boot_time
from fastovms.system.disk import nearest_existing
from fastovms.system.memory import child_memory, find_trim, memory_left, memory_limit
from fastovms.system.threads import DiskThreads, LastWaits, LeavableExecutor
from fastovms.telemetry.metrics import GenerationCollector
from fastovms.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The most seconds between two attempts to open the files; each delay is twice the one before."""


class BatchService:
    """Files and batches of one server. They are stored in its state directory, which is locked, at
    the start or once it is available. A batch belongs to the server with that directory, even if
    responses are in a database that several servers share.

    Args:
        directory: None = files and batches are off.
        clock: returns the Unix time.

    Attributes:
        files: the files.
    """

    def __init__(
        self,
        directory: Path | None,
        files: FilesConfig,
        batches: BatchConfig,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._config = batches
        self._clock = clock
        self._threads = DiskThreads("files")
        self._open_store = partial(FileStore, config=files, clock=clock, threads=self._threads)
        self._store: FileStore | None = None
        self._runner: BatchRunner | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tenants: Collection[str] | None = None
        reason = "its state is not in a directory (see --state-dir)"
        if directory is not None:
            try:
                self._store = self._open_store(directory / FILE_FOLDER)
            except ConfigurationError as error:
                reason = str(error)
                logger.warning("files and batches are not available: %s", error)
        is_fault = directory is not None
        self.files = Kept("files", self._store, reason, is_fault=is_fault)
        self._kept = Kept[BatchRunner]("batches", None, reason, is_fault=is_fault)

    def start(
        self,
        router: Router,
        context: ApiContext,
        num_others: Callable[[], int],
        tenants: Collection[str] | None = None,
    ) -> None:
        """Adds the routes, and resumes interrupted batches.

        Args:
            num_others: returns the number of other running requests.
            tenants: see `set_tenants`; None = all.
        """
        config = self._config
        endpoints = BatchEndpoints(router, context.models, config.max_lines)

        def limit() -> int:
            return config.num_beside_others if num_others() else config.num_at_once

        caller = LineCaller(
            router, context.new_id, refuse_line, lambda: context.models.failure is not None
        )
        slots, checker = LineSlots(limit), InputChecker()

        def open_all(directory: Path) -> BatchRunner:
            if self._store is None:
                self._store = self._open_store(directory / FILE_FOLDER)
            parts = BatchParts(self._store, caller, slots, checker, endpoints.rules, self._clock)
            folder = directory / BATCH_FOLDER
            try:
                return BatchRunner(folder, config, parts)
            except OSError as error:
                raise ConfigurationError(f"{folder}: {error.strerror or error}") from None

        batches = Batches(
            self.files,
            self._kept,
            endpoints,
            context.bodies,
            context.new_id,
            self._clock,
        )
        add_batch_routes(router, Files(self.files, context.new_id, self._clock), batches)
        self._tenants = tenants
        if self._directory is None:
            return
        try:
            self._begin(open_all(self._directory))
        except ConfigurationError as error:
            if self._store is not None:
                logger.warning("batches are not available: %s", error)
            self._note(error)
            open_later = self._open_later(partial(open_all, self._directory))
            self._opening = asyncio.ensure_future(open_later)

    async def _open_later(self, open_all: Callable[[], BatchRunner]) -> None:
        """Opens the files and batches once the disk is available."""
        delay = _FIRST_DELAY
        while self._runner is None:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)
            try:
                self._begin(await self._threads.run(open_all))
            except ConfigurationError as error:
                self._note(error)
            except Exception:
                logger.exception("files and batches cannot be opened")
        logger.warning("files and batches are available from now on")

    def _note(self, error: ConfigurationError) -> None:
        """Notes why batches are not available, and files unless they are open by now."""
        self._kept.reason = str(error)
        if self._store is None:
            self.files.reason = str(error)
        else:
            self.files.open(self._store)

    def _begin(self, runner: BatchRunner) -> None:
        """Makes the files and batches available, and resumes the batches."""
        assert self._store is not None
        self._runner = runner
        self.files.open(self._store)
        self._kept.open(runner)
        runner.start(self._tenants)
        self._store.drop_expired()  # the inputs of unfinished batches are safe by now

    def set_tenants(self, tenants: Collection[str]) -> int:
        """Pauses the batches of all tenants except these. Returns the number of paused batches."""
        self._tenants = tenants
        return 0 if self._runner is None else self._runner.set_tenants(tenants)

    async def work(self) -> Sequence[WorkItem]:
        """Returns the running batches of all tenants."""
        return await batch_work(self._kept)

    async def stop(self) -> None:
        """Stops all batches. The next process resumes them."""
        if self._opening is not None:
            self._opening.cancel()
        if self._runner is not None:
            await self._runner.close()

    async def close(self) -> None:
        """Stops all batches, and unlocks the directory."""
        await self.stop()
        await self._threads.close()
        if self._store is not None:
            self._store.close()
            self._store = None


_SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread must let another one have the GIL. At Python's 5 ms the engine
thread may wait a tenth of a step for it."""

_UPLOADS: Final = (*UPLOAD_ROUTES, *audio.ROUTES)
"""The patterns of routes whose bodies are forms with files."""

_LAST_WRITES: Final = 5.0
"""Seconds in which responses in the background, which have ended by then, must have been kept."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything the operator chose.

    Attributes:
        model_list: the file that lists the models, which `read_models` reads again; None = no list.
    """

    models: tuple[ModelSource, ...]
    repository: RepositoryConfig = field(default_factory=RepositoryConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)
    state: StateConfig = field(default_factory=StateConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    prefix_cache: PrefixCacheConfig = field(default_factory=PrefixCacheConfig)
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    files: FilesConfig = field(default_factory=FilesConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    model_list: Path | None = None
    read_models: ReadList | None = None


def serve(
    config: ServerConfig,
    log: LineWriter,
    ahead: CompileAhead | None = None,
    sockets: BoundSockets | None = None,
) -> None:
    """Serves until a signal has drained the server. Raises ConfigurationError if the model, the
    device, an address or a file is not available; EngineFailed if the engine has died or hangs.

    Args:
        log: the stream of the log, and of the access log unless it has its own file.
        ahead: compiles a model already.
        sockets: those to listen on; None = they are bound before the models are loaded.
    """
    check_sizes(config)
    supply = model_supply(config, log, ahead)
    run(config, log, load=supply.load, supply=supply, sockets=sockets)


def check_sizes(config: ServerConfig) -> None:
    """Logs a warning for a size that the operator chose beyond that of its disk. Raises
    ConfigurationError if a size is more than the memory that this process may use."""
    state, most = _state_dir(config.state), memory_limit()
    in_memory = {
        "--max-buffered-bodies": (HTTP.max_buffered_bodies, config.http),
        "--max-image-memory": (MEDIA.max_image_memory, config.media),
        "--model-memory": (RESIDENCY.model_memory, config.residency),
    }
    on_disk = {
        "--state-max-size": (STATE.max_bytes, config.state, state),
        "--max-files-size": (UPLOADS.max_files_size, config.files, state),
        "--prefix-cache-disk-size": (
            PREFIX_CACHE.max_bytes,
            config.prefix_cache,
            config.prefix_cache.directory or state,
        ),
    }
    for flag, (field_, section) in in_memory.items():
        size = getattr(section, field_.name)
        if size != field_.default and size > most:
            raise ConfigurationError(
                f"{flag} {format_size(size)} is more than the memory that this process may use: at "
                f"most {format_size(most)}"
            )
    for flag, (field_, section, directory) in on_disk.items():
        size = getattr(section, field_.name)
        if directory is None or size in (None, field_.default):
            continue
        total = shutil.disk_usage(nearest_existing(directory)).total
        if size > total:
            logger.warning(
                "%s %s is more than the disk of %s holds, which is %s",
                flag,
                format_size(size),
                directory,
                format_size(total),
            )


def model_supply(
    config: ServerConfig, log: LineWriter | None = None, ahead: CompileAhead | None = None
) -> ModelSupply:
    """Returns the loader of the operator's models. Raises ConfigurationError if a model is missing
    or obviously broken.

    Args:
        log: shows on a terminal that models are being loaded; None = nothing is shown.
        ahead: compiles a model already.
    """
    finder = ModelFinder.of(config.repository, os.environ)
    prefix_cache = config.prefix_cache
    cores = TunedCores.share()
    load = partial(load_models, media=config.media, cores=cores, ahead=ahead)
    supply = ModelSupply(
        config.models,
        finder.find,
        load if log is None else log.busy()(load),
        config.residency,
        open_blocks=partial(
            open_block_directory,
            prefix_cache,
            _state_dir(config.state),
            SteadyClock(time.time, boot_time),
        ),
        keeps_salted=prefix_cache.keeps_salted,
        list_path=config.model_list,
        read_list=config.read_models,
        cores=cores,
    )
    if ahead is not None:
        supply.find([ahead.model])
    elif not any(map(finder.needs_network, config.models)):
        supply.find()  # so that the commonest mistakes are found at once
    return supply


def run(
    config: ServerConfig,
    log: LineWriter,
    *,
    load: Callable[[], ServedModels],
    supply: ModelSupply | None = None,
    sockets: BoundSockets | None = None,
) -> None:
    """Serves the models that `load` loads, like `serve`. Tests and benchmarks use it with their own
    models.

    Args:
        supply: loads and unloads models; None = the models stay loaded.
        sockets: as for `serve`.
    """

    def load_and_settle() -> ServedModels:
        models = load()
        settle_memory()
        return models

    async def serve_models() -> None:
        # At the end, no thread is waited for whose time is over.
        asyncio.get_running_loop().set_default_executor(LeavableExecutor())
        bound = sockets or bind_sockets(config.http, os.environ, os.getpid())
        await _run(config, log, access_lines, tracer, load_and_settle, supply, bound)

    sys.setswitchinterval(_SWITCH_INTERVAL)
    with (
        span_tracer(config.service.otlp_traces_endpoint, os.environ) as tracer,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        _access_log(config.service, log) as access_lines,
    ):
        runner.run(serve_models())


async def _run(
    config: ServerConfig,
    log: LineWriter,
    access_lines: LineWriter | None,
    tracer: Tracer | None,
    load: Callable[[], ServedModels],
    supply: ModelSupply | None,
    sockets: BoundSockets,
) -> None:
    extensions = load_extensions(ENDPOINTS)
    router = Router()
    registry = CollectorRegistry()
    status = ServerStatus(_may_wait)
    page = read_page_files(config.http.root_path) if config.security.ui else None
    open_paths = () if page is None else tuple(page.paths())
    guard = Guard(status, config.security, os.environ, open_paths)
    cors = cors_policy(config.security, needs_key=guard.needs_key)
    dispatcher = Dispatcher(
        router,
        render_error,
        gates=gates_for(
            config.security,
            cors,
            needs_key=guard.needs_key,
            tls=config.http.tls_certificate is not None,
            is_local=lambda: server.is_local,
        ),
        authenticate=guard,
        checks=[JsonOnly(render_error, _UPLOADS)],
        cross_origin=cors,
        root_path=config.http.root_path,
        paths=ApiPaths(),
    )
    observers = _observers(config.service, registry, access_lines, lambda: server)
    server = HttpServer(
        config.http,
        dispatcher,
        observers=observers,
        bound=sockets,
        memory_left=partial(memory_left, kept_space=0),
        client_of=ForwardedClients(config.http.forwarded_allow_ips).client,
    )
    add_health_routes(router, HealthRoutes(status, registry, __version__))
    if page is not None:
        add_page_routes(router, page)
    server.bind()  # before the state is touched: who has the address mostly has that too
    if not (guard.needs_key or server.is_local):
        logger.warning(
            "other machines can connect to %s, and no API key is needed: --api-key-file sets keys",
            ", ".join(server.addresses),
        )
    runs = BackgroundRuns(config.state.max_background)
    clock = SteadyClock(time.time, boot_time)
    store = open_store(config.state, os.environ, clock)
    state = None if store is None else ResponsesState(store, runs, config.state.resume)
    keeper: LeaseKeeper | None = None
    directory = None if store is None else _state_dir(config.state)
    batches = BatchService(directory, config.files, config.batches, clock)
    if store is not None:
        registry.register(StateCollector(store.stats, lambda: runs.num_running))
    loop = asyncio.get_running_loop()
    loop_watch = LoopWatch(lambda: server.num_connections > 0, time.monotonic, time.thread_time)
    registry.register(loop_watch)
    trimmer = MemoryTrimmer(find_trim())
    bodies = BodyReader()
    documents = _documents(config, batches.files)
    router.more_to_come = True
    router.pending = StartWait(status, router, bodies, config.residency.wait_timeout)

    def on_loaded(models: ServedModels) -> None:
        loop_watch.start(loop)  # until now a model was loaded, and nobody was served
        trimmer.start(loop)
        context = api_context(config, models, bodies, tracer, documents)
        registry.register(GenerationCollector(models.metrics))
        reload = None
        if supply is not None:
            registry.register(ModelCollector(models, supply.start(models)))
            reload = supply.reload if supply.has_list else None
        if state is not None:
            nonlocal keeper
            keeper = _lease_keeper(state, context, lambda: guard.tenants)
            keeper.start()
        work = (batches.work, partial(_request_work, server, time.time))
        add_model_routes(router, context, state, reload, work, extensions)
        num_others = lambda: server.num_requests + runs.num_running  # noqa: E731
        batches.start(router, context, num_others, guard.tenants)
        if config.security.enable_docs:
            describe = partial(_describe, config, router, models, needs_key=guard.needs_key)
            add_docs_routes(router, DocsRoutes(describe))
        router.more_to_come = False

    def announce(models: ServedModels) -> None:
        text = greeting(server.addresses, models, needs_key=guard.needs_key)
        with suppress(OSError):  # perhaps nobody reads it any more
            os.write(sys.stdout.fileno(), f"{text}\n".encode())

    def end_removed() -> None:
        """Ends the requests of keys that were removed, and holds their batches."""
        tenants = guard.tenants
        counts = (
            server.cut(lambda request: request.caller.tenant not in tenants | {""}),
            runs.cancel_all(tenants),
            batches.set_tenants(tenants),
        )
        if any(counts):
            logger.warning(
                "API keys were removed: disconnected %d requests, cancelled %d background "
                "responses, paused %d batches",
                *counts,
            )

    hooks = LifecycleHooks(
        load,
        on_loaded,
        announce,
        reloads=[
            server.reload_tls,
            guard.reload,
            end_removed,
            *(lines.reopen for lines in {log, access_lines} if lines is not None),
            *([] if supply is None else [supply.reload_soon]),
        ],
        drains=[runs.drain, lambda seconds: batches.stop()],
        ends=[] if supply is None else [supply.close],
        trouble=(lambda: "") if store is None else store.trouble,
    )
    notifier = Notifier(os.environ, os.getpid())
    waits = LastWaits(config.http.drain_timeout)
    try:
        await Lifecycle(
            server,
            status,
            notifier,
            config.http,
            config.service,
            hooks,
            waits,
            listens_early=not sockets.are_inherited,
        ).run()
    finally:
        loop_watch.stop()
        trimmer.stop()
        bodies.close()
        documents.close()
        await waits.wait("the files of batches", batches.close())
        await waits.wait("responses in the background", runs.drain(_LAST_WRITES))
        if keeper is not None:
            await waits.wait("giving up responses", keeper.close())
        if store is not None:
            await waits.wait("the store of responses", store.close())


def _may_wait(request: Request) -> bool:
    """Returns whether a request may wait for the models at start. Uploads may not, because no
    handler can receive them yet."""
    return request.method == "POST" and request.path not in _UPLOADS


def _state_dir(config: StateConfig) -> Path | None:
    """Returns the directory of the state; None = the operator switched it off."""
    if config.state_dir == IN_MEMORY:
        return None
    return Path(config.state_dir or default_directory(os.environ))


def _observers(
    config: ServiceConfig,
    registry: CollectorRegistry,
    access_lines: LineWriter | None,
    server: Callable[[], HttpServer],
) -> list[Observer]:
    """Returns the observers that are notified at the end of every request."""
    http_metrics = HttpMetrics(server)
    observers: list[Observer] = [http_metrics]
    registry.register(ProcessCollector(registry=None))
    registry.register(ChildCollector(child_memory))
    registry.register(http_metrics)
    if config.ovms_metrics:
        ovms_metrics = OvmsMetrics()
        observers.append(ovms_metrics)
        registry.register(ovms_metrics)
    if access_lines is not None:
        skip = [path.strip() for path in config.access_log_skip.split(",")]
        observers.append(AccessLog(config.access_log, access_lines.write_line, skip=skip))
    return observers


async def _request_work(server: HttpServer, unix_time: Callable[[], float]) -> list[WorkItem]:
    """Returns the running requests of all tenants, including requests without a key."""
    started = unix_time() - asyncio.get_running_loop().time()
    return [
        WorkItem(
            "request",
            request.id,
            request.caller.tenant,
            "in_progress",
            request.path,
            int(started + request.received_at),
            partial(_cut, server, request),
        )
        for request in server.requests()
        if request.received_at
    ]


async def _cut(server: HttpServer, request: Request) -> None:
    server.cut(lambda other: other is request)


def _lease_keeper(
    state: ResponsesState, context: ApiContext, tenants: Callable[[], Collection[str]]
) -> LeaseKeeper:
    resumer = None
    if state.resumes:
        restorer = RunRestorer(context, state.store)
        resumer = Resumer(state.store, state.runs, restorer, tenants)
    return LeaseKeeper(state.store, state.runs, resumer)


def api_context(
    config: ServerConfig,
    models: ServedModels,
    bodies: BodyReader,
    tracer: Tracer | None,
    documents: Documents | None = None,
) -> ApiContext:
    """Returns the dependencies of handlers.

    Args:
        documents: None = documents are read, but there are no uploaded files.
    """
    if documents is None:
        documents = _documents(config, Kept[FileStore]("files", None, "there is no server"))
    models.takes_any_name = config.api.any_model_name
    return ApiContext(
        models,
        config.api,
        new_id=lambda: secrets.token_hex(16),
        unix_time=time.time,
        bodies=bodies,
        tracer=tracer,
        read_files=None if documents is None else documents.read,
    )


def _documents(config: ServerConfig, files: Kept[FileStore]) -> Documents:
    processes = PdfProcesses()
    return Documents(config.media, partial(path_for, files), processes.read, processes.close)


def _describe(
    config: ServerConfig, router: Router, models: ServedModels, *, needs_key: bool
) -> dict[str, object]:
    """Returns the OpenAPI document. If a key is required, it does not reveal model names."""
    # Imported here because the schemas take a tenth of a second and are seldom asked for.
    from fastovms.parts.openapi.document import openapi_document

    known = models.known
    return openapi_document(
        router.operations,
        model="MODEL" if needs_key or not known else known[0].name,
        root_path=config.http.root_path,
        needs_key=needs_key,
    )


@contextmanager
def _access_log(config: ServiceConfig, log: LineWriter) -> Iterator[LineWriter | None]:
    """Opens the access log and yields its writer, or None if there is no access log."""
    if config.access_log == "off":
        yield None
    elif config.access_log_file is None:
        yield log
    else:
        with closing(LineWriter(config.access_log_file)) as lines:
            yield lines
