"""Keeps pages from reaching this server under a name of their own (DNS rebinding).

A page's owner can let the page's name lead to 127.0.0.1 once the page is loaded. The browser then
takes this server for the page's own: its requests have the right `Origin`, but the page's `Host`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from fastovms.http.routing.messages import ErrorRenderer, Request, Response

_MAX_PASSED: Final = 64
_MAX_LENGTH: Final = 261  # a name of 255 characters (RFC 1035 2.3.4), a colon and a port


class HostCheck:
    """A check that refuses requests for a name that is not this machine's.

    Addresses are taken: no name server has a say in them. So is whatever comes over a Unix socket,
    which no page can reach, and a request without Host (HTTP/1.0), which no browser sends.

    Args:
        names: what the server may be called beside localhost, without ports.
        applies: tells, asked at each request, whether to check at all.
    """

    def __init__(
        self,
        names: Iterable[str],
        render_error: ErrorRenderer,
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        self._names = frozenset({"localhost", *(name.lower().rstrip(".") for name in names)})
        self._render_error = render_error
        self._applies = applies
        self._passed: set[str] = set()  # Host fields that were found good, so as not to ask again

    def __call__(self, request: Request) -> Response | None:
        host = request.headers.by_name.get("host")
        if not host or host in self._passed or not request.client or not self._applies():
            return None
        if host[0] == "[":
            return None  # an IPv6 address: `head` has checked the form
        name = host.partition(":")[0].lower().rstrip(".")
        if name in self._names or name.endswith(".localhost") or _is_ipv4(name):
            if len(self._passed) < _MAX_PASSED and len(host) <= _MAX_LENGTH:
                self._passed.add(host)
            return None
        # RFC 9110 15.5.20: a request for an authority that this server does not speak for.
        return self._render_error(
            request,
            421,
            f"this server is not known as {name!r}: start it with --allowed-hosts {name}, or "
            "use an address or localhost",
        )


def machine_names(hostname: str, hosts_file: Path = Path("/etc/hosts")) -> set[str]:
    """Returns the machine's name, without and with its domain, as far as they lead to this machine
    without a name server: from the host name, and from the lines of /etc/hosts that have it."""
    names = {hostname.lower(), hostname.lower().partition(".")[0]}
    try:
        lines = hosts_file.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        aliases = line.partition("#")[0].lower().split()[1:]
        if not names.isdisjoint(aliases):
            names.update(aliases)
    return names - {""}


def is_local(sock: socket.socket) -> bool:
    """Returns whether only this machine can reach a bound socket."""
    if sock.family == socket.AF_UNIX:
        return True
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    address = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_ipv4(name: str) -> bool:
    """Returns whether a host is an IPv4 address, in any of the forms that clients send unchanged,
    such as 127.1."""
    try:
        socket.inet_aton(name)
    except OSError:
        return False
    return True
