"""The child's side of `SlicedProcess`: loads a model, and answers messages one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fastovms.backends.processes import WorkerFailed, receive, send
from fastovms.engine.model.devices import reason_of
from fastovms.system.memory import find_trim
from fastovms.telemetry.log_format import log_handler, start_log


def serve_model(
    connection: Connection[Any, Any],
    load_model: Callable[[Any], Any],
    answer: Callable[[Any, Any], object],
    faults: tuple[type[Exception], ...] = (RuntimeError, ValueError),
) -> None:
    """Loads the model named by the first message and answers with its `info`, then answers messages
    until the connection ends. If loading fails, or a message raises one of `faults`, the answer is
    `WorkerFailed`.

    Args:
        load_model: returns the model, given the first message, which has `model_dir`, `log_level`
            and `log_format`.
        answer: returns the answer to a message, given the model and the message.
    """
    load = receive(connection)
    start_log(log_handler(logging.StreamHandler(), load.log_format), load.log_level)
    try:
        model = load_model(load)
    except Exception as error:
        send(connection, WorkerFailed(f"{load.model_dir} cannot be loaded: {reason_of(error)}"))
        return
    send(connection, model.info)
    trim = find_trim()
    while True:
        asked = receive(connection)
        found: object
        try:
            found = answer(model, asked)
        except faults as error:
            found = WorkerFailed(reason_of(error))
        send(connection, found)
        trim()
