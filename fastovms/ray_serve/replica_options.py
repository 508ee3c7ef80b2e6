"""Declares what an application of Ray Serve may be told, in the `args` of its YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fastovms.errors import ConfigurationError

_ADDRESSES: Final = ("--host", "--port", "--rest-port", "--rest_port", "--listen", "--uds")
_PLUGIN_CONFIG: Final = ("--plugin-config", "--plugin_config")


class ReplicaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server of every replica serves.

    Attributes:
        model: as `MODEL` of `fastovms serve`; "" = the demo model.
        arguments: further ones of `fastovms serve`.
        environment: variables of the server's process.
    """

    model: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}

    def serve_arguments(self, num_cpus: float) -> list[str]:
        """Returns the arguments of `fastovms serve`: with as many threads as Ray has reserved
        processors for the replica, unless the operator has set OpenVINO's properties.

        Threads are not pinned: each replica would pin its own to the first processors of the node.
        """
        arguments = [*([self.model] if self.model else []), *self.arguments]
        if num_cpus and not _flags(self.arguments) & set(_PLUGIN_CONFIG):
            num_threads = max(1, round(num_cpus))
            config = {"INFERENCE_NUM_THREADS": num_threads, "ENABLE_CPU_PINNING": False}
            arguments += ["--plugin-config", json.dumps(config)]
        return arguments


def replica_options(args: Mapping[str, Any]) -> ReplicaOptions:
    """Reads the `args` of an application.

    Raises:
        ConfigurationError: a field is unknown, of the wrong type, or an address, which replicas
            choose.
    """
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
