"""Runs in the process of OpenVINO GenAI's pipeline: takes commands, sends tokens.

It is started as `python -m fastovms.backends.genai.worker_main DESCRIPTOR`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from fastovms.backends.engine_thread.engine_loop import Close, Command, run_engine
from fastovms.backends.genai.admission import longest_context
from fastovms.backends.genai.pipeline import load_pipeline
from fastovms.backends.genai.pipeline_engine import PipelineEngine
from fastovms.backends.genai.worker_messages import (
    EncodingImages,
    LoadPipeline,
    PipelineLoaded,
    WorkerFailed,
)
from fastovms.backends.processes.process import connect_to_parent, receive, send
from fastovms.engine.model.graph.paging import reason_of
from fastovms.errors import ConfigurationError
from fastovms.system.free_memory import find_trim
from fastovms.telemetry.log_format import log_handler, start_log

logger = logging.getLogger(__name__)


def serve(connection: Connection[Any, Any]) -> None:
    """Answers `LoadPipeline` with `PipelineLoaded` or `WorkerFailed`; then takes commands, and
    sends `StepReport`s, until `Close` or the end of the connection."""
    load: LoadPipeline = receive(connection)
    handler = log_handler(logging.StreamHandler(), load.log_format)
    start_log(handler, load.log_level)
    try:
        pipeline, capacity = load_pipeline(load.model_dir, load.config, available=load.available)
    except ConfigurationError as error:
        send(connection, WorkerFailed(str(error)))
        return
    model = load.model
    longest = longest_context(load.config, capacity)
    if longest < model.max_model_len:
        model = replace(model, max_model_len=longest)
    engine = PipelineEngine(
        pipeline,
        model,
        load.config,
        capacity,
        on_images=lambda num_images: send(connection, EncodingImages(num_images)),
        free_memory=find_trim(),
    )
    send(connection, PipelineLoaded(model, engine.stats()))
    run(engine, connection)


def run(
    engine: PipelineEngine,
    connection: Connection[Any, Any],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    try:
        run_engine(
            engine,
            receive=lambda wait: _receive(connection, wait),
            take_stats=engine.stats,
            publish=partial(send, connection),
            clock=clock,
        )
    except (EOFError, ConnectionError):
        logger.debug("the server has gone")
    except Exception as error:
        logger.exception("the pipeline has failed")
        send(connection, WorkerFailed(f"{type(error).__name__}: {reason_of(error)}"))


def _receive(connection: Connection[Any, Any], wait: bool) -> list[Command]:
    commands: list[Command] = []
    try:
        if wait:
            commands.append(receive(connection))
        while connection.poll():
            commands.append(receive(connection))
    except EOFError:
        commands.append(Close())
    return commands


def main() -> None:
    connection = connect_to_parent(sys.argv)
    serve(connection)
    connection.close()
    sys.stderr.flush()
    # The pipeline complains, on its orderly end, of requests that still run.
    os._exit(0)


if __name__ == "__main__":
    main()
