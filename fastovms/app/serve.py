"""Runs the server: loads the models, adds the routes, and listens."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from fastovms.app.compiling import EarlyCompilation
from fastovms.app.greeting import greeting
from fastovms.app.late import imported
from fastovms.app.loading import load_models
from fastovms.app.paged import TunedCores
from fastovms.app.parts import FORMS, LIMITS, PAGE, LazyDocuments, Parts, PartSettings
from fastovms.app.routes import add_health_routes, add_model_routes
from fastovms.app.state_opening import open_store
from fastovms.app.supply import ModelSupply, ReadList, freeze_objects
from fastovms.config import ApiConfig, HttpConfig
from fastovms.engine.model.devices import format_size
from fastovms.errors import ConfigurationError
from fastovms.extensions import ENDPOINTS, load_extensions
from fastovms.http.access_log import AccessLog, HttpMetrics
from fastovms.http.gates import Budgets, ForwardedClients, JsonOnly
from fastovms.http.listeners import BoundSockets, Notifier, bind_sockets
from fastovms.http.messages import Observer, Request
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.several_models.model_pool import ModelCollector
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
    Settings,
    StateConfig,
)
from fastovms.service.export import LoadedGraphs, OvmsMetrics, span_tracer
from fastovms.service.lifecycle import KeyCheck, Lifecycle, LifecycleHooks, cors_policy, gates_for
from fastovms.service.log_writer import LineWriter
from fastovms.service.watch import ChildCollector, LoopWatch, MemoryTrimmer
from fastovms.state.sqlite.database import IN_MEMORY
from fastovms.state.state_store import StateCollector
from fastovms.system.clock import SteadyClock, boot_time
from fastovms.system.disk import nearest_existing, state_directory
from fastovms.system.memory import child_memory, find_trim, memory_left, memory_limit
from fastovms.system.threads import DetachableExecutor, ShutdownWaits
from fastovms.telemetry.metrics import GenerationCollector
from fastovms.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from fastovms.parts.prefix_cache.directory import BlockDirectory

logger = logging.getLogger(__name__)

_SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread must release the GIL for another thread. With Python's default, 5
ms, the engine thread may wait a tenth of a step for it."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The operator's configuration.

    Attributes:
        model_list: the file with the list of models, which `read_models` reads again; None = no
            list.
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

    @classmethod
    def of(cls, models: Sequence[ModelSource], settings: Settings, **more: Any) -> ServerConfig:
        """Returns the configuration with these models and settings; `more` are the other
        attributes."""
        makers = {each.name: each.default_factory for each in fields(cls)}
        sections = {
            name: settings.section(maker) for name, maker in makers.items() if maker is not MISSING
        }
        return cls(tuple(models), **sections, **more)


def serve(
    config: ServerConfig,
    log: LineWriter,
    ahead: EarlyCompilation | None = None,
    sockets: BoundSockets | None = None,
) -> None:
    """Serves until a signal ends the server and running requests are finished. Raises
    ConfigurationError if a model, device, address or file is not available, and EngineFailed if an
    engine dies or hangs.

    Args:
        log: the stream of the log, and of the access log unless it has its own file.
        ahead: a running compilation of a model; None = none.
        sockets: the sockets to listen on; None = bind them before the models are loaded.
    """
    check_sizes(config)
    supply = model_supply(config, log, ahead)
    run(config, log, load=supply.load, supply=supply, sockets=sockets)


def check_sizes(config: ServerConfig) -> None:
    """Logs a warning if a configured size exceeds its disk. Raises ConfigurationError if a size
    exceeds the memory limit of this process."""
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
    config: ServerConfig, log: LineWriter | None = None, ahead: EarlyCompilation | None = None
) -> ModelSupply:
    """Returns the loader of the operator's models. Raises ConfigurationError if a model is missing
    or obviously broken.

    Args:
        log: shows on a terminal that models are being loaded; None = nothing is shown.
        ahead: a running compilation of a model; None = none.
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
        open_blocks=partial(_open_blocks, prefix_cache, _state_dir(config.state)),
        keeps_salted=prefix_cache.keeps_salted,
        list_path=config.model_list,
        read_list=config.read_models,
        cores=cores,
    )
    if ahead is not None:
        supply.find([ahead.model])
    elif not any(map(finder.needs_network, config.models)):
        supply.find()  # find common mistakes before anything is loaded
    return supply


def _open_blocks(config: PrefixCacheConfig, state_dir: Path | None) -> BlockDirectory | None:
    """Opens the prefix cache on disk; None = it is off, or cannot be used."""
    if config.max_bytes == 0 or (config.directory or state_dir) is None:
        return None
    from fastovms.parts.prefix_cache.directory import open_block_directory

    return open_block_directory(config, state_dir, SteadyClock(time.time, boot_time))


def run(
    config: ServerConfig,
    log: LineWriter,
    *,
    load: Callable[[], ServedModels],
    supply: ModelSupply | None = None,
    sockets: BoundSockets | None = None,
) -> None:
    """Serves the models that `load` returns, like `serve`; used by tests and benchmarks with their
    own models.

    Args:
        supply: loads and unloads models; None = the models stay loaded.
        sockets: see `serve`.
    """

    def load_and_settle() -> ServedModels:
        models = load()
        freeze_objects()
        return models

    async def serve_models() -> None:
        # At shutdown, threads that exceed their time limit are not waited for.
        asyncio.get_running_loop().set_default_executor(DetachableExecutor())
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
    page = imported(PAGE)(config.http.root_path) if config.security.ui else None
    clock = SteadyClock(time.time, boot_time)

    def new_budgets() -> Budgets:
        budgets = imported(LIMITS)(clock)
        registry.register(budgets)
        found: Budgets = budgets
        return found

    open_paths = () if page is None else page.paths
    guard = KeyCheck(status, config.security, os.environ, open_paths, new_budgets)
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
        checks=[JsonOnly(render_error, FORMS)],
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
        page.add_routes(router)
    # Before the state is opened: another server at this address probably uses the same state.
    server.bind()
    if not (guard.needs_key or server.is_local):
        logger.warning(
            "other machines can connect to %s, and no API key is needed: --api-key-file sets keys",
            ", ".join(server.addresses),
        )
    store = open_store(config.state, os.environ, clock)
    parts = Parts(
        PartSettings(
            store,
            config.state,
            None if store is None else _state_dir(config.state),
            config.files,
            config.batches,
            clock,
            tenants=lambda: guard.tenants,
            num_requests=lambda: server.num_requests,
            shows_docs=config.security.enable_docs,
            needs_key=guard.needs_key,
            root_path=config.http.root_path,
            media=config.media,
        )
    )
    if store is not None:
        registry.register(StateCollector(store.stats, lambda: parts.num_running))
    loop = asyncio.get_running_loop()
    loop_watch = LoopWatch(lambda: server.num_connections > 0, time.monotonic, time.thread_time)
    registry.register(loop_watch)
    trimmer = MemoryTrimmer(find_trim())
    bodies = BodyReader()
    documents = LazyDocuments(config.media, parts.find_file)
    router.more_to_come = True
    router.pending = StartWait(status, router, bodies, config.residency.wait_timeout)

    def on_loaded(models: ServedModels) -> None:
        loop_watch.start(loop)  # do not count delays while the models load: no client is affected
        trimmer.start(loop)
        context = api_context(config, models, bodies, tracer, documents)
        context = replace(context, find_budget=guard.find_budget)
        registry.register(GenerationCollector(models.metrics))
        reload = None
        if supply is not None:
            registry.register(ModelCollector(models, supply.start(models)))
            if config.service.ovms_metrics:
                registry.register(LoadedGraphs(models))
            reload = supply.reload if supply.has_list else None
        work = (partial(_request_work, server, time.time),)
        add_model_routes(router, context, parts, reload, work, extensions)
        parts.begin_work()
        router.more_to_come = False

    def announce(models: ServedModels) -> None:
        text = greeting(server.addresses, models, needs_key=guard.needs_key)
        with suppress(OSError):  # stdout may be closed
            os.write(sys.stdout.fileno(), f"{text}\n".encode())

    def end_removed() -> None:
        """Ends the requests of removed keys, and pauses their batches."""
        tenants = guard.tenants
        num_cut = server.cut(lambda request: request.caller.tenant not in tenants | {""})
        ended = parts.set_tenants(tenants)
        counts = (
            num_cut,
            ended.get("responses", 0),
            ended.get("batches", 0),
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
        drains=parts.drains,
        ends=[] if supply is None else [supply.close],
        trouble=(lambda: "") if store is None else store.trouble,
    )
    notifier = Notifier(os.environ, os.getpid())
    waits = ShutdownWaits(config.http.drain_timeout)
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
        await parts.close(waits)
        if store is not None:
            await waits.wait("the store of responses", store.close())


def _may_wait(request: Request) -> bool:
    """Returns whether a request may wait for the models at startup. Uploads may not, because no
    handler can receive them yet."""
    return request.method == "POST" and request.path not in FORMS


def _state_dir(config: StateConfig) -> Path | None:
    """Returns the directory of the state; None = disabled by the operator."""
    if config.state_dir == IN_MEMORY:
        return None
    return Path(config.state_dir or state_directory(os.environ))


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
            request.progress,
        )
        for request in server.requests()
        if request.received_at
    ]


async def _cut(server: HttpServer, request: Request) -> None:
    server.cut(lambda other: other is request)


def api_context(
    config: ServerConfig,
    models: ServedModels,
    bodies: BodyReader,
    tracer: Tracer | None,
    documents: LazyDocuments | None = None,
) -> ApiContext:
    """Returns the dependencies of handlers.

    Args:
        documents: the reader of documents; None = a new reader, without uploaded files.
    """
    if documents is None:
        documents = LazyDocuments(config.media, Parts().find_file)
    models.takes_any_name = config.api.any_model_name
    return ApiContext(
        models,
        config.api,
        new_id=lambda: secrets.token_hex(16),
        unix_time=time.time,
        bodies=bodies,
        tracer=tracer,
        read_files=documents.read,
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
