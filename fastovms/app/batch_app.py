"""Runs a batch file without a server: loads the models and answers each line with the server's
handlers."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import uvloop
from tqdm import tqdm

from fastovms.api.body import BodyReader
from fastovms.api.context import ApiContext
from fastovms.api.served import ServedModels
from fastovms.app.routes import add_model_routes
from fastovms.app.supply import ModelSupply
from fastovms.errors import ConfigurationError, EngineFailed, StateFailed
from fastovms.http.routing import Router
from fastovms.parts.batches.endpoints import BatchEndpoints, refuse_line
from fastovms.parts.batches.input import CheckedInput, InputChecker, InputRules, LineSlots
from fastovms.parts.batches.records import ResultLog, cause_of_end, open_output
from fastovms.parts.batches.runner import Ask, LineCaller, LineRunner
from fastovms.parts.client.http_client import cancelled_by
from fastovms.server_config import BatchConfig
from fastovms.service.watch import EngineWatch
from fastovms.system.processor_time import ProcessorTime
from fastovms.system.threads import DiskThreads, in_daemon_thread

logger = logging.getLogger(__name__)

SOME_FAILED: Final = 1
"""The exit code if any line was not answered with status 200."""

WRONG_INPUT: Final = 2

_CLOSE_TIMEOUT: Final = 5.0


class BatchPaths(NamedTuple):
    """The input file with the requests, and the output file for the results."""

    input: Path
    output: Path


@dataclass(frozen=True, slots=True)
class OfflineParts:
    """The parts of a server that answer the lines.

    Attributes:
        context: returns the dependencies of handlers.
        engine_timeout: seconds after which a hanging engine ends the run.
    """

    supply: ModelSupply
    context: Callable[[ServedModels, BodyReader], ApiContext]
    config: BatchConfig
    engine_timeout: float


def run_batch(paths: BatchPaths, parts: OfflineParts) -> int:
    """Runs a batch, and returns the exit code. SIGINT and SIGTERM end the run with exit code 128
    plus the signal's number; finished results are in the output file, and the next run continues
    after them. Raises ConfigurationError if a model or a file is not available, EngineFailed if an
    engine dies or hangs, and StateFailed if the results cannot be written."""
    _check_paths(paths)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_until_signal(paths, parts))


def _check_paths(paths: BatchPaths) -> None:
    if not paths.input.is_file():
        raise ConfigurationError(f"{paths.input} is not a file")
    if paths.output.exists() and not paths.output.is_file():
        raise ConfigurationError(f"{paths.output} exists and is not a file")
    if paths.output.exists() and paths.output.samefile(paths.input):
        raise ConfigurationError(f"the output file must not be the input file: {paths.output}")
    if not paths.output.parent.is_dir():
        raise ConfigurationError(f"{paths.output.parent} is not a directory")


async def _run_until_signal(paths: BatchPaths, parts: OfflineParts) -> int:
    task = asyncio.ensure_future(_run(paths, parts))
    with cancelled_by(signal.SIGINT, signal.SIGTERM, task=task) as cancellation:
        await asyncio.wait([task])
    if task.cancelled():
        print(f"stopped: the same command goes on in {paths.output}", file=sys.stderr)
        return cancellation.exit_code
    return task.result()


async def _run(paths: BatchPaths, parts: OfflineParts) -> int:
    async with _loaded(parts.supply) as models:
        router, bodies, threads = Router(), BodyReader(), DiskThreads("batch")
        try:
            context = parts.context(models, bodies)
            add_model_routes(router, context)
            endpoints = BatchEndpoints(router, models, parts.config.max_lines)
            rules = endpoints.rules(None)
            checked = await _check(paths.input, rules)
            if checked.errors:
                return _complain(paths.input, checked)
            caller = LineCaller(
                router, context.new_id, refuse_line, lambda: models.failure is not None
            )
            key, last_line = checked.digest, checked.last_line
            async with open_output(paths.output, key, last_line, threads) as log:
                slots = LineSlots(lambda: parts.config.num_at_once)
                ask = partial(caller.ask, tenant="")
                run = _run_lines(paths, log, ask, slots, threads, checked)
                await _watched(run, models, parts.engine_timeout)
                print(f"{log.num_completed} lines are answered, {log.num_failed} have failed")
                return SOME_FAILED if log.num_failed else 0
        finally:
            await threads.close()
            bodies.close()


async def _check(path: Path, rules: InputRules) -> CheckedInput:
    try:
        return await InputChecker(pause=0.0).check(path, rules)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None


def _complain(path: Path, checked: CheckedInput) -> int:
    for error in checked.errors:
        place = path if error.line is None else f"{path}:{error.line}"
        print(f"fastovms: {place}: {' '.join(error.message.split())}", file=sys.stderr)
    return WRONG_INPUT


async def _run_lines(
    paths: BatchPaths,
    log: ResultLog,
    ask: Ask,
    slots: LineSlots,
    threads: DiskThreads,
    checked: CheckedInput,
) -> None:
    """Runs the lines that have no result yet. Raises StateFailed if the results cannot be
    written."""
    with tqdm(
        total=checked.num_requests,
        initial=log.num_done,
        unit=" lines",
        file=sys.stderr,
        disable=None,  # None = off unless stderr is a terminal
    ) as progress:

        def on_done() -> None:
            progress.set_postfix(failed=log.num_failed, refresh=False)
            progress.update()

        runner = LineRunner(paths.input, log, ask, slots, threads, on_done)
        try:
            await runner.run()
            await log.flush()
            await threads.run(log.sync)
        except (OSError, ExceptionGroup) as error:
            cause = cause_of_end(error)
            if isinstance(cause, OSError):
                raise StateFailed(f"the results cannot be written: {cause}") from None
            raise


@asynccontextmanager
async def _loaded(supply: ModelSupply) -> AsyncIterator[ServedModels]:
    """Yields the models that lines may use, loaded or not."""
    models = await in_daemon_thread("load", supply.load)
    for model in models:
        model.backend.start()
    supply.start(models)
    try:
        yield models
    finally:
        await supply.close()
        closing = [asyncio.ensure_future(model.backend.close()) for model in models]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_TIMEOUT)
        await asyncio.to_thread(models.close)


async def _watched(run: Coroutine[None, None, None], models: ServedModels, patience: float) -> None:
    """Awaits `run` and returns when all lines are done. Raises EngineFailed if an engine fails, or
    hangs for longer than `patience` seconds."""
    watch = EngineWatch(
        lambda: [model.backend for model in models],
        timeout=patience,
        on_progress=lambda: None,
        interval=None,
        time=ProcessorTime(time.monotonic),
    )
    lines, watching = asyncio.ensure_future(run), asyncio.ensure_future(watch.run())
    try:
        await asyncio.wait((lines, watching), return_when=asyncio.FIRST_COMPLETED)
        if not lines.done():
            raise EngineFailed(watching.result())
        lines.result()
    finally:
        for task in (lines, watching):
            task.cancel()
        await asyncio.wait((lines, watching))
