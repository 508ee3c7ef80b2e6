"""Talks to systemd: takes the sockets it hands over (sd_listen_fds(3)), and tells it the state of
the server (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

_FIRST_FD = 3
_LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_sockets(environ: MutableMapping[str, str], pid: int) -> list[socket.socket]:
    """Returns the listening sockets of a socket unit, and takes the variables out of the
    environment, so that child processes do not believe the sockets theirs.

    Raises:
        ConfigurationError: a descriptor is not what it should be.
    """
    values = {name: environ.pop(name, "") for name in _LISTEN_VARIABLES}
    if values["LISTEN_PID"] != str(pid) or not values["LISTEN_FDS"].isdecimal():
        return []
    sockets = []
    for fd in range(_FIRST_FD, _FIRST_FD + int(values["LISTEN_FDS"])):
        try:
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError(
                f"the inherited descriptor {fd} is no stream socket: {error.strerror}"
            ) from None
        if sock.type != socket.SOCK_STREAM:
            sock.detach()
            raise ConfigurationError(f"the inherited descriptor {fd} is no stream socket")
        sockets.append(sock)
    return sockets


class Notifier:
    """Sends state to the service manager. Without one, and on errors, it does nothing.

    Attributes:
        watchdog_interval: seconds between two calls of `watchdog`, half of what systemd allows;
            None = it does not watch this process.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self.watchdog_interval: float | None = None
        microseconds = environ.get("WATCHDOG_USEC", "")
        if microseconds.isdecimal() and environ.get("WATCHDOG_PID", str(pid)) == str(pid):
            self.watchdog_interval = int(microseconds) / 2e6

    def ready(self, status: str = "") -> None:
        """Says that the model is loaded and the sockets answer, or that a reload is over."""
        self._send("READY=1", *self._new_status(status))

    def status(self, text: str) -> None:
        """Sets the line that `systemctl status` shows."""
        lines = self._new_status(text)
        if lines:
            self._send(*lines)

    def reloading(self) -> None:
        """Says that a reload begins (Type=notify-reload); `ready` ends it."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}")

    def stopping(self, status: str = "") -> None:
        self._send("STOPPING=1", *self._new_status(status))

    def watchdog(self) -> None:
        """Says that work makes progress. It must not be called when it does not."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Asks for more time from now, for a start or stop that takes long. To be repeated before
        that runs out."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _new_status(self, text: str) -> list[str]:
        line = " ".join(text.split())  # a newline would start another assignment
        if not line or line == self._status:
            return []
        self._status = line
        return [f"STATUS={line}"]

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            logger.debug("systemd was not told %s: %s", assignments, error)
