"""Puts the parts together and runs them until a signal comes. Knows every part."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client import CollectorRegistry, ProcessCollector

from fastovms import __version__
from fastovms.api.completions import Completions
from fastovms.api.errors import render_error
from fastovms.api.health import HealthRoutes
from fastovms.api.routes import add_health_routes, add_model_routes
from fastovms.api.served import ServedModel, ServedModels
from fastovms.api.status import ServerStatus
from fastovms.backends.model_files import read_model_info
from fastovms.backends.paged import PagedBackend
from fastovms.config import ApiConfig, EngineConfig, HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.http import HttpServer, Router
from fastovms.metrics import GenerationMetrics
from fastovms.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SWITCH_INTERVAL: Final = 0.0005
"""Seconds. At Python's 5 ms the engine thread may wait a tenth of a step for the GIL."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything the operator chose. `model_name` None = the directory's name."""

    model_dir: Path
    model_name: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    api: ApiConfig = field(default_factory=ApiConfig)


def serve(config: ServerConfig) -> None:
    """Loads the model, serves it, and returns after a signal has drained the server.

    Raises:
        ConfigurationError: the model, the device or the address cannot be had.
    """
    check_address(config.http)
    model = load_model(config)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(config, model, announce=lambda text: print(text, flush=True)))


def check_address(config: HttpConfig) -> None:
    """Finds out early, before a model is loaded for minutes, whether the port is free.

    Raises:
        ConfigurationError: it is not, or the host has no such address.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}"
        ) from None


def load_model(config: ServerConfig) -> ServedModel:
    """Takes seconds: not for the event loop. Raises ConfigurationError."""
    info = read_model_info(config.model_dir, name=config.model_name)
    tokenizer = Tokenizer.load(config.model_dir)
    backend = PagedBackend.load(config.model_dir, info, config.engine)
    return ServedModel(backend, tokenizer, GenerationMetrics(info.name, backend.stats))


def build_router(config: ServerConfig, models: ServedModels) -> Router:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for model in models:
        registry.register(model.metrics)
    router = Router()
    add_model_routes(
        router,
        models,
        Completions(
            models,
            config.api,
            new_id=lambda: uuid.uuid4().hex,
            unix_time=time.time,
            system_fingerprint=f"fastovms-{__version__}",
        ),
    )
    status = ServerStatus.serving(models)
    add_health_routes(router, HealthRoutes(status, registry, __version__))
    return router


async def run(config: ServerConfig, model: ServedModel, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests end; a second signal ends them.

    Args:
        announce: told where the server is and how to try it, once it answers.
    """
    first_signal, second_signal = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number, lambda: (second_signal if first_signal.is_set() else first_signal).set()
        )
    server = HttpServer(
        config.http, build_router(config, ServedModels([model])), render_error=render_error
    )
    model.backend.start()
    try:
        await server.start()
        announce(_greeting(server.addresses[0], model, config.engine))
        await first_signal.wait()
        logger.info("draining: running requests may end, new connections are refused")
        await _first_of(server.drain(config.http.drain_timeout), second_signal.wait())
    finally:
        # Requests that still run end with an error of their own, which a client can tell from a
        # lost connection; only then are the connections cut.
        await model.backend.close()
        await server.drain(config.http.drain_grace)
        await server.close()


async def _first_of(*waits: Coroutine[object, object, object]) -> None:
    """Returns when one of them does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _greeting(address: str, model: ServedModel, config: EngineConfig) -> str:
    info = model.info
    url = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
    body = json.dumps({"model": info.name, "prompt": "Once upon a time", "max_tokens": 60})
    quoted = body.replace("'", "'\\''")
    return (
        f"fastovms {__version__} is listening on {address}\n"
        f"model {info.name}: context of {info.max_model_len} tokens, on {config.device}\n"
        f"try: curl {url}/v1/completions -H 'Content-Type: application/json' -d '{quoted}'"
    )
