"""Lists the checks that every request passes before its key is looked at: its page's origin, and
its host.

Where clients need a key, that is more than any page has. Where they need none, these checks stand
in for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from fastovms.api.wire.error_responses import render_error
from fastovms.config.http_config import SecurityConfig
from fastovms.http.gates.cors import CorsPolicy
from fastovms.http.gates.host_check import HostCheck, machine_names
from fastovms.http.gates.origin_check import OriginCheck
from fastovms.http.routing.messages import Check


def cors_policy(config: SecurityConfig, *, needs_key: bool) -> CorsPolicy:
    origins = config.allowed_origins
    if origins is None:
        origins = "*" if needs_key else ""
    return CorsPolicy(
        origins,
        config.allowed_methods,
        config.allowed_headers,
        credentials=config.allow_credentials,
    )


def gates_for(
    config: SecurityConfig,
    cors: CorsPolicy,
    *,
    needs_key: bool,
    tls: bool,
    is_local: Callable[[], bool],
) -> list[Check]:
    """Returns the checks of a server.

    Args:
        tls: whether clients speak TLS to the server itself.
        is_local: tells whether only this machine can reach the server; it is asked at each request,
            since that is known only when the server is bound.
    """
    gates: list[Check] = [OriginCheck(cors, render_error, tls=tls)]
    named = None if config.allowed_hosts is None else config.allowed_hosts.split(",")
    if named is None and not needs_key:
        gates.append(HostCheck(_own_names(), render_error, is_local))
    elif named is not None and "*" not in named:
        gates.append(HostCheck({*_own_names(), *named}, render_error))
    return gates


def _own_names() -> set[str]:
    return machine_names(socket.gethostname())
