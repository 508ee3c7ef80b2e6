"""The server process of a Ray Serve replica, its options and its queue lengths."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL
from typing import Any, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from fastovms.backends.processes import exit_description
from fastovms.errors import BackendUnavailable, ConfigurationError

logger = logging.getLogger(__name__)

_ADDRESSES: Final = ("--host", "--port", "--rest-port", "--rest_port", "--listen", "--uds")
_PLUGIN_CONFIG: Final = ("--plugin-config", "--plugin_config")


class ReplicaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of each replica's server.

    Attributes:
        model: the `MODEL` argument of `fastovms serve`; "" = the demo model.
        arguments: further arguments of `fastovms serve`.
        environment: environment variables of the server process.
    """

    model: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}

    def serve_arguments(self, num_cpus: float) -> list[str]:
        """Returns the arguments of `fastovms serve`, with one thread per CPU that Ray has reserved
        for the replica, unless the operator has set OpenVINO's properties.

        Threads are not pinned, because all replicas on a node would use the same CPUs.
        """
        arguments = [*([self.model] if self.model else []), *self.arguments]
        if num_cpus and not _flags(self.arguments) & set(_PLUGIN_CONFIG):
            num_threads = max(1, round(num_cpus))
            config = {"INFERENCE_NUM_THREADS": num_threads, "ENABLE_CPU_PINNING": False}
            arguments += ["--plugin-config", json.dumps(config)]
        return arguments


def replica_options(args: Mapping[str, Any]) -> ReplicaOptions:
    """Reads the `args` of an application. Raises ConfigurationError if a field is unknown or of the
    wrong type, or sets an address, which replicas choose themselves."""
    try:
        options = msgspec.convert(dict(args), ReplicaOptions)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"args: {error}") from None
    if addresses := sorted(_flags(options.arguments) & set(_ADDRESSES)):
        raise ConfigurationError(
            f"args: `arguments` has {addresses[0]}, but each replica chooses an address; "
            "set that of Ray's proxy in http_options"
        )
    return options


def _flags(arguments: Sequence[str]) -> set[str]:
    return {argument.partition("=")[0] for argument in arguments}


_HOST: Final = "127.0.0.1"


class ChildServer:
    """A running server with loaded models. It is killed when this process ends.

    Attributes:
        url: the server's URL, such as "http://127.0.0.1:40123".
    """

    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        self._process = process
        self._output = asyncio.create_task(self._log_output())

    @classmethod
    async def start(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> ChildServer:
        """Starts a server and returns when it is ready. Raises BackendUnavailable if the server
        ends first; the reason is in the server's log.

        Args:
            arguments: the arguments of `fastovms serve`, without addresses.
            environment: variables in addition to those of this process.
        """
        serve = [sys.executable, "-m", "fastovms", "serve", *arguments]
        process = await asyncio.create_subprocess_exec(
            *[
                sys.executable,
                "-m",
                "fastovms.backends.dies_with_parent",
                str(os.getpid()),
            ],
            *[*serve, "--host", _HOST, "--port", "0"],
            stdin=DEVNULL,
            stdout=PIPE,
            env={**os.environ, **environment},
        )
        try:
            url = await _listening_at(process)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        return cls(process, url)

    async def wait(self) -> str:
        """Waits for the end of the server and returns a description, such as "was ended by
        SIGKILL"."""
        return exit_description(await self._process.wait())

    async def stop(self) -> None:
        """Stops the server gracefully and waits for its end without a timeout; see
        `--drain-timeout`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
        await self._output

    async def _log_output(self) -> None:
        """Logs the server's output, which also prevents a full pipe from blocking the server."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            logger.info("%s", line.decode(errors="replace").rstrip())


async def _listening_at(process: Process) -> str:
    """Returns the URL in the server's first output line, which is printed when the models are
    loaded. Raises BackendUnavailable if the server ends first."""
    assert process.stdout is not None
    greeting = (await process.stdout.readline()).decode()
    if not greeting:
        description = exit_description(await process.wait())
        raise BackendUnavailable(f"the server {description} before it was ready; its log says why")
    logger.info("%s", greeting.rstrip())
    return greeting.rpartition(" ")[2].rstrip()


_COUNTED: Final = ("fastovms_num_requests_running", "fastovms_num_requests_waiting")


def queue_lengths(metrics: str) -> dict[str, float]:
    """Returns the number of running and of waiting sequences of all models on one server, by metric
    name. `metrics` is the content of `/metrics`."""
    lines = [line for line in metrics.splitlines() if line.startswith(_COUNTED)]
    lengths = dict.fromkeys(_COUNTED, 0.0)
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            lengths[sample.name] += sample.value
    return lengths


def replicas_for_queues(context: Any) -> tuple[float, dict[str, Any]]:
    """Returns the number of replicas at which each has `target_ongoing_requests`, and an empty
    state.

    The rule is Ray's own, with the server's counts instead of Ray's, because one request may have
    several sequences, and background responses outlive their requests. Requests that Ray has not
    assigned yet count, too. Ray then applies bounds, delays and factors. `context` is a
    `ray.serve.config.AutoscalingContext`.
    """
    metrics = context.aggregated_metrics or {}
    in_servers = sum(sum(metrics.get(name, {}).values()) for name in _COUNTED)
    total = in_servers + (context.total_queued_requests or 0)
    return total / context.config.target_ongoing_requests, {}
