"""Fetches images from data URLs and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import re
import socket
import ssl
import string
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import httptools

from fastovms.errors import ConfigurationError, InvalidField, shortage_of

logger = logging.getLogger(__name__)


_HEAD: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_MAX_HEAD: Final = 256
_PIECE: Final = 1024 * 1024
"""The number of characters that are decoded at once; a multiple of four."""

_UNKNOWN_TYPES: Final = ("", "application/octet-stream", "binary/octet-stream")
"""Media types that are sent for images of unknown type."""

_EQUIVALENTS: Final = (
    *((space, "") for space in "\n\r\t "),
    *((f"%{ord(char):02{case}}", char) for char in "+/=" for case in "xX"),
)
"""Characters that base64 in a URL may contain in addition: line breaks (RFC 2045, 6.8) and
percent-encoded characters (RFC 3986)."""


def decode_data_url(url: str, name: str, *, max_bytes: int, is_image: bool = True) -> bytes:
    """Returns the content of a data URL, in time proportional to its length. Raises InvalidField if
    the URL is malformed, has more than `max_bytes`, or is not an image although `is_image` is
    set."""
    head = _HEAD.match(url[:_MAX_HEAD])
    if head is None:
        raise InvalidField(f"{name} is a malformed data URL", param=name)
    media_type, options = head[1].strip().lower(), head[2].lower().split(";")
    if is_image and media_type not in _UNKNOWN_TYPES and not media_type.startswith("image/"):
        raise InvalidField(f"{name} must be an image, not {media_type[:80]}", param=name)
    if "base64" not in (option.strip() for option in options):
        raise InvalidField(f"{name} must be a data URL in base64", param=name)
    return decode_base64(url[head.end() :], name, max_bytes=max_bytes)


def decode_base64(encoded: str, name: str, *, max_bytes: int) -> bytes:
    """Returns the content of a base64 text, in time proportional to its length. Raises InvalidField
    if the text is malformed or its content exceeds `max_bytes`."""
    for text, plain in _EQUIVALENTS:
        encoded = encoded.replace(text, plain)
    if len(encoded) // 4 * 3 > max_bytes + 3:
        raise too_large(name, max_bytes)
    data = _decode(encoded, name)
    if len(data) > max_bytes:
        raise too_large(name, max_bytes)
    return data


def _decode(encoded: str, name: str) -> bytes:
    """Decodes base64 in pieces, because decoding holds the GIL."""
    data = bytearray()
    try:
        if "=" in encoded[:-2]:
            raise ValueError("padding before the end")
        for at in range(0, len(encoded), _PIECE):
            data += base64.b64decode(encoded[at : at + _PIECE], validate=True)
    except ValueError as error:
        raise InvalidField(f"{name} has malformed base64", param=name) from error
    return bytes(data)


def too_large(name: str, max_bytes: int) -> InvalidField:
    """Returns the error for a file that exceeds `max_bytes`. `name` is the request field."""
    return InvalidField(f"{name} must be at most {max_bytes} bytes", param=name)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The IPv6 network whose addresses lead to the IPv4 address in their last four bytes (RFC 6052)."""


def is_public(text: str) -> bool:
    """Returns whether an IP address is public: not private, link-local, loopback, shared, reserved
    or multicast, and not mapped to such an IPv4 address."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.sixtofour:  # Python's releases differ in whether such addresses are global
            return _is_public(address.sixtofour)
        if address.is_site_local:
            return False
    return _is_public(address)


def _is_public(address: Address) -> bool:
    return address.is_global and not (
        address.is_private or address.is_multicast or address.is_reserved
    )


ANY_DOMAIN: Final = "all"

_DOMAIN: Final = re.compile(r"[\w.-]+|\[?[0-9A-Fa-f:.]+\]?")
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MAX_REDIRECTS: Final = 5
_MAX_RESPONSE_HEAD: Final = 64 * 1024
_NUM_RESOLVERS: Final = 8
_READ_SIZE: Final = 64 * 1024
_MAX_URL: Final = 8 * 1024

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host and port, best first. Raises OSError if the host is
unknown."""


class _Failed(Exception):
    """The reason why an image is not available, for the log only: clients must not learn about the
    network."""


@dataclass(slots=True)
class _Answer:
    """Collects a response; the methods are `httptools` callbacks."""

    max_bytes: int
    status: int = 0
    location: str = ""
    has_length: bool = False
    has_head: bool = False
    is_complete: bool = False
    is_too_large: bool = False
    body: bytearray = field(default_factory=bytearray)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"location":
            self.location = value.decode("latin-1")
        elif name.lower() == b"transfer-encoding":
            self.has_length = True
        elif name.lower() == b"content-length" and value.isdigit():
            self.has_length = True
            self.is_too_large = int(value[:20]) > self.max_bytes
        elif name.lower() == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise _Failed("the image is compressed although compression was not requested")

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > self.max_bytes:
            self.is_too_large = True
        else:
            self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def is_enough(self) -> bool:
        """Whether no more of the response needs to be read."""
        if self.has_head and self.status != 200:
            return True
        return self.is_complete or self.is_too_large


class SystemResolver:
    """Resolves host names with the operating system, in separate threads, because a lookup may take
    half a minute and cannot be cancelled."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_RESOLVERS, "media-resolve")

    async def __call__(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await loop.run_in_executor(self._threads, find)
        return [str(address[0]) for *_, address in found]


class Fetcher:
    """Fetches images within limits. Raises ConfigurationError if a domain is not a host name.

    This class does not use a library such as `http.client`, which resolves the host name again
    after the addresses were checked; it connects to the address that was checked.

    Args:
        domains: the allowed hosts; "all" = any host.
        allow_redirects: whether to follow redirects, each of which is checked like the first URL.
        allow_private: whether to connect to addresses that are not public, too.
        timeout: seconds for an image, redirects included.
    """

    def __init__(
        self,
        domains: Collection[str],
        *,
        allow_redirects: bool,
        allow_private: bool,
        timeout: float,
        resolve: Resolve | None = None,
    ) -> None:
        for domain in domains:
            if not _DOMAIN.fullmatch(domain.strip()):
                raise ConfigurationError(
                    "--allowed-media-domains must be host names such as example.com, not "
                    f"{domain!r}"
                )
        self._domains = frozenset(_normal(domain.strip()) for domain in domains)
        self._allow_redirects = allow_redirects
        self._allow_private = allow_private
        self._timeout = timeout
        self._resolve = resolve or SystemResolver()
        self._tls = ssl.create_default_context() if self._domains else None

    async def fetch(self, url: str, name: str, *, max_bytes: int) -> bytes:
        """Returns the content of an image. Raises InvalidField if the domain is not allowed, or the
        image is not available within the limits; BackendUnavailable if no connection can be opened
        because file descriptors or memory are exhausted."""
        parts = self._check(url, name)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._follow(parts, name, max_bytes)
        except TimeoutError as error:
            logger.info("image %s was not fetched within %g s", name, self._timeout)
            raise _cannot_fetch(name) from error
        except (_Failed, OSError, httptools.HttpParserError, ValueError) as error:
            logger.info("image %s was not fetched: %s: %s", name, type(error).__name__, error)
            raise shortage_of(error) or _cannot_fetch(name) from error
        if answer.is_too_large:
            raise too_large(name, max_bytes)
        return bytes(answer.body)

    def _check(self, url: str, name: str) -> SplitResult:
        try:
            parts = urlsplit(quote(url, safe=string.punctuation))
            host, port = _normal(parts.hostname or ""), parts.port
        except ValueError:
            raise InvalidField(f"{name} is a malformed URL", param=name) from None
        if not host or port == 0 or parts.scheme not in _PORTS or len(url) > _MAX_URL:
            raise InvalidField(f"{name} is a malformed URL", param=name)
        if "@" in parts.netloc:
            raise InvalidField(f"{name} must not have a user name or password", param=name)
        if ANY_DOMAIN not in self._domains and host not in self._domains:
            raise InvalidField(
                f"{name}: this server does not fetch images from {host[:253]}", param=name
            )
        return parts

    async def _follow(self, parts: SplitResult, name: str, max_bytes: int) -> _Answer:
        """Follows redirects and returns the first response that is not a redirect."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await self._ask(parts, max_bytes)
            if answer.status == 200:
                return answer
            if answer.status not in _REDIRECTS or not self._allow_redirects:
                raise _Failed(f"the server answered with status {answer.status}")
            if not answer.location:
                raise _Failed("a redirect has no Location")
            try:
                target = self._check(urljoin(parts.geturl(), answer.location), name)
            except InvalidField as error:
                raise _Failed(f"the target of a redirect is not allowed: {error}") from error
            if parts.scheme == "https" != target.scheme:
                raise _Failed("a redirect leads from https to http")
            parts = target
        raise _Failed("too many redirects")

    async def _ask(self, parts: SplitResult, max_bytes: int) -> _Answer:
        host = parts.hostname or ""
        port = parts.port or _PORTS[parts.scheme]
        tls = self._tls if parts.scheme == "https" else None
        error: OSError | None = None
        for address in await self._addresses(host, port):
            try:
                reader, writer = await asyncio.open_connection(
                    address, port, limit=_READ_SIZE, ssl=tls, server_hostname=tls and host
                )
            except OSError as reason:
                error = reason
                continue
            try:
                writer.write(_request(parts))
                return await _read(reader, max_bytes)
            finally:
                writer.transport.abort()
        raise error or _Failed(f"{host} has no address")

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        addresses = await self._resolve(host, port)
        for address in addresses:
            if not self._allow_private and not is_public(address):
                raise _Failed(f"{host} has the address {address}, which is not public")
        return addresses


async def _read(reader: asyncio.StreamReader, max_bytes: int) -> _Answer:
    answer = _Answer(max_bytes)
    parser = httptools.HttpResponseParser(answer)
    num_read = 0
    while not answer.is_enough:
        data = await reader.read(_READ_SIZE)
        num_read += len(data)
        if not data:
            if answer.has_head and not answer.has_length:
                break  # without a length, the body ends with the connection
            raise _Failed("the connection ended too soon")
        if num_read > (2 * max_bytes if answer.has_head else 0) + _MAX_RESPONSE_HEAD:
            raise _Failed("the head or the framing of the answer is too large")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            if not answer.is_complete:  # ignore errors in data after the answer
                raise
        answer.status = parser.get_status_code()
    return answer


def _request(parts: SplitResult) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    return (
        f"GET {target} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "User-Agent: fastovms\r\n"
        "Accept: image/*\r\n"
        "Accept-Encoding: identity\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")


def _normal(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _cannot_fetch(name: str) -> InvalidField:
    return InvalidField(f"{name}: the image cannot be fetched", param=name)
