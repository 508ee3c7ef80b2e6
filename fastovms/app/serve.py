"""Puts the parts of the server together, and runs it. It knows every part."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from fastovms import __version__
from fastovms.api.admin.health import HealthRoutes
from fastovms.api.admin.start_wait import StartWait
from fastovms.api.admin.status import ServerStatus
from fastovms.api.admin.work import WorkItem
from fastovms.api.batches.batch_routes import UPLOAD_ROUTES
from fastovms.api.generation.context import ApiContext
from fastovms.api.openapi.docs_routes import DocsRoutes, add_docs_routes
from fastovms.api.openapi.document import openapi_document
from fastovms.api.responses.background_runs import BackgroundRuns, ResponsesState
from fastovms.api.responses.lease_keeper import LeaseKeeper
from fastovms.api.responses.resumption.resumer import Resumer
from fastovms.api.responses.resumption.run_restorer import RunRestorer
from fastovms.api.routes import add_health_routes, add_model_routes
from fastovms.api.serving.model_metrics import ModelCollector
from fastovms.api.serving.served import ServedModels
from fastovms.api.wire.bodies.body_reader import BodyReader
from fastovms.api.wire.error_responses import render_error
from fastovms.api.wire.path_spelling import ApiPaths
from fastovms.app.batch_service import BatchService
from fastovms.app.greeting import greeting
from fastovms.app.loading import load_models
from fastovms.backends.paged.shared_cores import SharedCores
from fastovms.catalog.finder import ModelFinder
from fastovms.catalog.hub import Repository, model_root
from fastovms.config.api_config import ApiConfig, MediaConfig
from fastovms.config.engine_config import PrefixCacheConfig
from fastovms.config.files_config import BatchConfig, FilesConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.residency_config import ResidencyConfig
from fastovms.config.service_config import ServiceConfig, StateConfig
from fastovms.config.settings import ModelSource
from fastovms.http import HttpServer, JsonOnly, Observer, Router
from fastovms.http.listening.systemd import Notifier, inherited_sockets
from fastovms.http.observing.access_log import AccessLog
from fastovms.http.observing.http_metrics import HttpMetrics
from fastovms.http.routing.messages import Request
from fastovms.prefix_cache.directory_choice import open_block_directory
from fastovms.service.gates import cors_policy, gates_for
from fastovms.service.guard import Guard
from fastovms.service.lifecycle import Lifecycle, LifecycleHooks
from fastovms.service.log_writer import LineWriter
from fastovms.service.loop_watch import LoopWatch
from fastovms.service.memory_trimmer import MemoryTrimmer
from fastovms.service.ovms_metrics import OvmsMetrics
from fastovms.service.span_export import span_tracer
from fastovms.state.opening.opening import open_store
from fastovms.state.sqlite.database import IN_MEMORY
from fastovms.state.sqlite.location import default_directory
from fastovms.state.state_metrics import StateCollector
from fastovms.supply.model_supply import ModelSupply, ReadList
from fastovms.supply.on_demand import settle_memory
from fastovms.system.free_memory import find_trim
from fastovms.system.last_waits import LastWaits, LeavableExecutor
from fastovms.telemetry.metrics import GenerationCollector
from fastovms.telemetry.tracing import Tracer
from fastovms.ui.page_files import read_page_files
from fastovms.ui.page_routes import add_page_routes

logger = logging.getLogger(__name__)

_SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread must let another one have the GIL. At Python's 5 ms the engine
thread may wait a tenth of a step for it."""

_LAST_WRITES: Final = 5.0
"""Seconds in which responses in the background, which have ended by then, must have been kept."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything the operator chose.

    Attributes:
        model_list: the file that lists the models, and `read_models` reads it again; None = there
            is none.
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


def serve(config: ServerConfig, log: LineWriter) -> None:
    """Serves until a signal has drained the server.

    Args:
        log: where the log is written, and the access log too unless that has a file of its own.

    Raises:
        ConfigurationError: the model, the device, an address or a file cannot be had.
        EngineFailed: the engine has died or hangs.
    """
    supply = model_supply(config)
    run(config, log, load=supply.load, supply=supply)


def model_supply(config: ServerConfig) -> ModelSupply:
    """Returns what loads the operator's models.

    Raises:
        ConfigurationError: one is not there, or is broken, as far as that is seen at once.
    """
    root = model_root(config.repository.path, os.environ)
    finder = ModelFinder(Repository(root), config.repository)
    prefix_cache = config.prefix_cache
    supply = ModelSupply(
        config.models,
        finder.find,
        partial(load_models, media=config.media, cores=SharedCores.create()),
        config.residency,
        open_blocks=partial(open_block_directory, prefix_cache, _state_dir(config.state)),
        keeps_salted=prefix_cache.keeps_salted,
        list_path=config.model_list,
        read_list=config.read_models,
    )
    if not any(map(finder.needs_network, config.models)):
        supply.find()  # so that the commonest mistakes are found at once
    return supply


def run(
    config: ServerConfig,
    log: LineWriter,
    *,
    load: Callable[[], ServedModels],
    supply: ModelSupply | None = None,
) -> None:
    """Serves the models that `load` loads, as `serve` does; tests and benchmarks serve their own
    with it.

    Args:
        supply: has models come and go; None = they stay.
    """

    def load_and_settle() -> ServedModels:
        models = load()
        settle_memory()
        return models

    async def serve_models() -> None:
        # At the end, no thread is waited for whose time is over.
        asyncio.get_running_loop().set_default_executor(LeavableExecutor())
        await _run(config, log, access_lines, tracer, load_and_settle, supply)

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
) -> None:
    router = Router()
    registry = CollectorRegistry()
    status = ServerStatus(_may_wait)
    page = read_page_files(config.http.root_path) if config.security.ui else None
    open_paths = () if page is None else tuple(page.paths())
    guard = Guard(status, config.security, os.environ, open_paths)
    cors = cors_policy(config.security, needs_key=guard.needs_key)
    inherited = inherited_sockets(os.environ, os.getpid())
    server = HttpServer(
        config.http,
        router,
        render_error=render_error,
        gates=gates_for(
            config.security,
            cors,
            needs_key=guard.needs_key,
            tls=config.http.tls_certificate is not None,
            is_local=lambda: server.is_local,
        ),
        authenticate=guard,
        checks=[JsonOnly(render_error, UPLOAD_ROUTES)],
        cross_origin=cors,
        observers=_observers(config.service, registry, access_lines, lambda: server),
        inherited=inherited,
        paths=ApiPaths(),
    )
    add_health_routes(router, HealthRoutes(status, registry, __version__))
    if page is not None:
        add_page_routes(router, page)
    server.bind()  # before the state is touched: who has the address mostly has that too
    runs = BackgroundRuns(config.state.max_background)
    store = open_store(config.state, os.environ, time.time)
    state = None if store is None else ResponsesState(store, runs, config.state.resume)
    keeper: LeaseKeeper | None = None
    directory = None if store is None else _state_dir(config.state)
    batches = BatchService(directory, config.files, config.batches, time.time)
    if store is not None:
        registry.register(StateCollector(store.stats, lambda: runs.num_running))
    loop = asyncio.get_running_loop()
    loop_watch = LoopWatch(lambda: server.num_connections > 0, time.monotonic, time.thread_time)
    registry.register(loop_watch)
    trimmer = MemoryTrimmer(find_trim())
    bodies = BodyReader()
    router.more_to_come = True
    router.pending = StartWait(status, router, bodies, config.residency.wait_timeout)

    def on_loaded(models: ServedModels) -> None:
        loop_watch.start(loop)  # until now a model was loaded, and nobody was served
        trimmer.start(loop)
        context = api_context(config, models, bodies, tracer)
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
        add_model_routes(router, context, state, reload, work)
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
        """Ends what runs for keys that were removed, and holds their batches."""
        tenants = guard.tenants
        counts = (
            server.cut(lambda request: request.tenant not in tenants | {""}),
            runs.cancel_all(tenants),
            batches.set_tenants(tenants),
        )
        if any(counts):
            logger.warning(
                "API keys were removed: %d connections are cut, %d background responses are "
                "cancelled, %d batches are held",
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
            listens_early=not inherited,
        ).run()
    finally:
        loop_watch.stop()
        trimmer.stop()
        bodies.close()
        await waits.wait("the files of batches", batches.close())
        await waits.wait("responses in the background", runs.drain(_LAST_WRITES))
        if keeper is not None:
            await waits.wait("giving up responses", keeper.close())
        if store is not None:
            await waits.wait("the store of responses", store.close())


def _may_wait(request: Request) -> bool:
    """Returns whether a request may wait for the models at start. Files are not uploaded then: no
    handler takes them piece by piece yet."""
    return request.method == "POST" and request.path not in UPLOAD_ROUTES


def _state_dir(config: StateConfig) -> Path | None:
    """Returns the directory of the state; None = the operator wants none."""
    if config.state_dir == IN_MEMORY:
        return None
    return Path(config.state_dir or default_directory(os.environ))


def _observers(
    config: ServiceConfig,
    registry: CollectorRegistry,
    access_lines: LineWriter | None,
    server: Callable[[], HttpServer],
) -> list[Observer]:
    """Returns who is told of every request that is over."""
    http_metrics = HttpMetrics(server)
    observers: list[Observer] = [http_metrics]
    registry.register(ProcessCollector(registry=None))
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
    """Returns the requests of all tenants that have a key, or come without one."""
    started = unix_time() - asyncio.get_running_loop().time()
    return [
        WorkItem(
            "request",
            request.id,
            request.tenant,
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
    config: ServerConfig, models: ServedModels, bodies: BodyReader, tracer: Tracer | None
) -> ApiContext:
    """Returns what handlers need beside a request."""
    return ApiContext(
        models,
        config.api,
        new_id=lambda: secrets.token_hex(16),
        unix_time=time.time,
        bodies=bodies,
        tracer=tracer,
    )


def _describe(
    config: ServerConfig, router: Router, models: ServedModels, *, needs_key: bool
) -> dict[str, object]:
    """Returns the description of the API. Where a key is needed it does not tell strangers what the
    models are called."""
    known = models.known
    return openapi_document(
        router.routes(),
        model="MODEL" if needs_key or not known else known[0].name,
        root_path=config.http.root_path,
        needs_key=needs_key,
    )


@contextmanager
def _access_log(config: ServiceConfig, log: LineWriter) -> Iterator[LineWriter | None]:
    """Yields where the lines of the access log go, or None if there is none."""
    if config.access_log == "off":
        yield None
    elif config.access_log_file is None:
        yield log
    else:
        with closing(LineWriter(config.access_log_file)) as lines:
            yield lines
