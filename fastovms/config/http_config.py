"""Declares where the server listens, what a client may cost there, and who may ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where to listen and what a client may cost. Sizes in bytes, times in seconds.

    Attributes:
        host, port: the first address; port 0 = any free one, host "" = every interface, None =
            only those of `listen`.
        listen: further addresses, "host:port", "[ipv6]:port", "*:port" or "unix:/path".
        root_path: what a proxy may leave in front of every path, such as "/llm"; "" = nothing.
        forwarded_allow_ips: addresses and networks of proxies whose X-Forwarded-For is believed, a
            list separated by commas, "*" = any; None = none.
        unix_mode: permissions of Unix sockets.
        reuse_port: let other processes listen on the same ports (SO_REUSEPORT).
        backlog: connections that the kernel queues (it caps this at net.core.somaxconn).
        tls_certificate, tls_key: PEM files; None = plain HTTP. A key of None is looked for in the
            certificate's file.
        max_request_line: 414 beyond it.
        max_head: request line and header fields together, trailers likewise; 431 beyond it.
        max_header_fields: 431 beyond it.
        max_body: 413 beyond it; see also `largest_body`.
        max_buffered_bodies: all request bodies in memory together, of which those of one client
            are at most what is left for all others; 503 beyond it.
        max_pipelined: requests that wait on one connection behind the current one.
        max_connections: 503 beyond it. As many TLS handshakes may run besides; of more, the oldest
            ends.
        max_write_buffer: what a stream may queue for a client that does not read before it is cut.
        head_timeout: how long a whole head may take, and a new connection's first byte.
        body_timeout: how long a whole body may take, plus its size over `min_body_rate` (bytes a
            second).
        keep_alive_timeout: idle time between two requests; above that of the usual client pools
            and proxies (60 s), so that the client closes first.
        write_timeout: a client that takes nothing of its answer for so long is cut.
        linger_timeout: how long what a client still sends after its request was refused is read.
        close_timeout: a client that takes nothing of its connection's last answer for so long is
            cut.
        ping_interval: silence in an event stream before a comment is sent; 0 = never.
        drain_timeout: how long, at shutdown, requests may take that run or still come over open
            connections, each of which is told by the next answer that it is the last.
        drain_grace: how long, at shutdown, idle connections may still bring a request.
    """

    host: str | None = "127.0.0.1"
    port: int = 8000
    listen: tuple[str, ...] = ()
    root_path: str = ""
    forwarded_allow_ips: str | None = None
    unix_mode: int = 0o660
    reuse_port: bool = False
    backlog: int = 2048
    tls_certificate: str | None = None
    tls_key: str | None = None
    max_request_line: int = 16 * 1024
    max_head: int = 64 * 1024
    max_header_fields: int = 128
    max_body: int = 64 * 1024 * 1024
    max_buffered_bodies: int = 1024 * 1024 * 1024
    max_pipelined: int = 16
    max_connections: int = 16 * 1024
    max_write_buffer: int = 4 * 1024 * 1024
    head_timeout: float = 10.0
    body_timeout: float = 60.0
    min_body_rate: float = 1024 * 1024
    keep_alive_timeout: float = 75.0
    write_timeout: float = 60.0
    linger_timeout: float = 2.0
    close_timeout: float = 5.0
    ping_interval: float = 15.0
    drain_timeout: float = 30.0
    drain_grace: float = 0.5

    @property
    def largest_body(self) -> int:
        """Bytes beyond which a body would never be read: 413."""
        return min(self.max_body, self.max_buffered_bodies // 2)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who may ask, and which scripts.

    Attributes:
        api_key_file: one key a line.
        api_keys: further keys. Without any, and without a file, the environment's API_KEY or
            VLLM_API_KEY is the key; without that, anybody may ask.
        allowed_origins: of pages that may ask, beside the server's own; a list separated by commas,
            "*" = any. None = any where a key is needed, since that is more than a page has; where
            none is needed, no others.
        allowed_methods, allowed_headers: what scripts of those pages may use; lists like it.
        allow_credentials: let those scripts send cookies.
        allowed_hosts: names by which the server may be asked, beside addresses, localhost and the
            machine's own; a list separated by commas, "*" = any. None = no others where no key is
            needed and only this machine can reach the server, else any.
        enable_docs: serve the description of the API, to everybody.
        ui: serve the page at `/`, to everybody. What it shows it asks for with a key.
    """

    api_key_file: Path | None = None
    api_keys: tuple[str, ...] = ()
    allowed_origins: str | None = None
    allowed_methods: str = "*"
    allowed_headers: str = "*"
    allow_credentials: bool = False
    allowed_hosts: str | None = None
    enable_docs: bool = True
    ui: bool = True
