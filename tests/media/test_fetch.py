"""Tests of `fastovms/parts/media/fetch.py`."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from urllib.parse import SplitResult

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastovms.errors import ConfigurationError, InvalidField
from fastovms.parts.media import fetch as data_url
from fastovms.parts.media.fetch import Fetcher, SystemResolver, decode_data_url, is_public
from tests.connections import serving

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("data:image/png;base64,", TEXT),
        ("DATA:IMAGE/PNG;BASE64,", TEXT),
        ("data:image/png;charset=utf-8;base64,", TEXT),
        ("data:;base64,", TEXT),
        ("data:image/*;base64,", TEXT),
        ("data:application/octet-stream;base64,", TEXT),
        ("data:image/png;base64,", base64.encodebytes(DATA).decode()),
        ("data:image/png;base64,", TEXT.replace("/", "/\r\n")),
        ("data:image/png;base64,", f" {TEXT[:10]}\t{TEXT[10:]} "),
        ("data:image/png;base64,",
         TEXT.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D")),
    ],
)  # fmt: skip
def test_data_url_of_every_form_is_decoded(head: str, text: str) -> None:
    assert decode_data_url(f"{head}{text}\n", "url", max_bytes=256) == DATA


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:", "malformed data URL"),
        ("data:image/png;base64", "malformed data URL"),
        ("data:" + "x" * 400 + ",", "malformed data URL"),
        ("data:image/png,abc", "in base64"),
        ("data:text/html;base64,YQ==", "must be an image, not text/html"),
        ("data:image/png;base64,Y%51==", "malformed base64"),
        ("data:image/png;base64,YQ=", "malformed base64"),
        ("data:image/png;base64,Y", "malformed base64"),
        ("data:image/png;base64,YQ==YQ==", "malformed base64"),
        ("data:image/png;base64,Y Q=", "malformed base64"),
        ("data:image/png;base64,Y\u00e4Q=", "malformed base64"),
        ("data:image/png;base64,_-==", "malformed base64"),
        ("data:image/png;base64," + "A" * 348, "at most 256 bytes"),
        ("data:image/png;base64," + "A" * 10_000, "at most 256 bytes"),
        ("data:image/png;base64," + "=" * 10_000, "at most 256 bytes"),
    ],
)
def test_invalid_data_url_is_refused(url, message):
    with pytest.raises(InvalidField, match=message) as error:
        decode_data_url(url, "messages[0].content[0].image_url.url", max_bytes=256)
    assert error.value.param == "messages[0].content[0].image_url.url"


@given(st.binary(max_size=100))
def test_data_url_is_decoded_piece_by_piece(data):
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_url, "_PIECE", 8)
        assert decode_data_url(url, "url", max_bytes=100) == data


@pytest.mark.slow
@given(st.text(max_size=60))
def test_any_text_is_data_or_an_invalid_field(text):
    with suppress(InvalidField):
        decode_data_url("data:image/png;base64," + text, "url", max_bytes=30)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "2002:808:808::1", "64:ff9b::808:808", "2a00:1450::5%eth0"],
)
def test_public_address_is_recognized(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
        "::10.0.0.1",
        "2002:a00:1::1",
        "64:ff9b::a00:1",
        "2001:0:a00:1::1",
        "localhost",
        "",
        "8.8.8",
    ],
)
def test_private_or_malformed_address_is_not_public(address):
    assert not is_public(address)


# The client with a scripted server: its requests, the accepted answers, and forbidden addresses.


NAME = "messages[0].content[0].image_url.url"
LIMIT = 1000

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A server that sends `answers`, one per connection, and the names that resolve to it.

    Attributes:
        requests: the received requests.
        resolved: the resolved names.
    """

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.requests: list[str] = []
        self.resolved: list[str] = []
        self.addresses: Sequence[str] = ["127.0.0.1"]
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.decode())
            if self._answers:
                writer.write(self._answers.pop(0))
                await writer.drain()
                writer.close()
            else:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        return self.addresses

    def fetcher(
        self,
        *domains: str,
        allow_redirects: bool = False,
        allow_private: bool = True,
        timeout: float = 20.0,
    ) -> Fetcher:
        return Fetcher(
            domains or ["pics.example"],
            allow_redirects=allow_redirects,
            allow_private=allow_private,
            timeout=timeout,
            resolve=self.resolve,
        )

    def url(self, path: str = "/a.png", host: str = "pics.example") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def site(*answers: bytes) -> AsyncIterator[Site]:
    found = Site(*answers)
    async with serving(found.serve) as found.port:
        yield found


def answer(body: bytes = b"picture", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(headers or [f"Content-Length: {len(body)}"])]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(target: str, status: str = "302 Found") -> bytes:
    return answer(b"", status, f"Location: {target}", "Content-Length: 0")


async def fetch(fetcher: Fetcher, url: str) -> bytes:
    return await fetcher.fetch(url, NAME, max_bytes=LIMIT)


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"picture"),
        answer(b"picture" + b"more than it says", "200 OK", "Content-Length: 7"),
        answer(b"picture", "200 OK", "Connection: close"),
        answer(b"picture", "200 OK", "Content-Length: 7", "Content-Encoding: identity"),
        answer(b"3\r\npic\r\n4;x=y\r\nture\r\n0\r\n\r\n", "200 OK", "Transfer-Encoding: chunked"),
        b"HTTP/1.0 200 OK\r\n\r\npicture",
    ],
)
async def test_body_of_every_form_is_read(raw):
    async with site(raw) as server:
        assert await fetch(server.fetcher(), server.url()) == b"picture"


async def test_fetch_sends_path_host_and_headers():
    async with site(answer(), answer()) as server:
        await fetch(server.fetcher(), server.url("/d\u00e4ys/a b.png?x=1&y=%20#part"))
        await fetch(server.fetcher("PICS.example."), server.url("", host="Pics.Example."))
        first, second = server.requests
    assert first.split("\r\n") == [
        "GET /d%C3%A4ys/a%20b.png?x=1&y=%20 HTTP/1.1",
        f"Host: pics.example:{server.port}",
        "User-Agent: fastovms",
        "Accept: image/*",
        "Accept-Encoding: identity",
        "Connection: close",
        "",
        "",
    ]
    assert second.startswith("GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"", "404 Not Found"),
        answer(b"", "204 No Content"),
        answer(b"", "304 Not Modified"),
        redirect("http://pics.example/b.png"),
        answer(b"short", "200 OK", "Content-Length: 7"),
        answer(b"3\r\npic\r\n", "200 OK", "Transfer-Encoding: chunked"),
        answer(b"zz\r\npic\r\n", "200 OK", "Transfer-Encoding: chunked"),
        answer(b"picture", "200 OK", "Content-Length: 7", "Content-Encoding: gzip"),
        answer(b"", "200 OK", "Content-Length: 99999999999999999999999999"),
        answer(b"picture", "200 OK", "X: " + "y" * 100_000, "Content-Length: 7"),
        answer((b"1;" + b"e" * 100 + b"\r\nx\r\n") * 900, "200 OK", "Transfer-Encoding: chunked"),
        b"HTTP/1.1 200 OK\r\nX: y",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"\0" * 300_000,
    ],
)
async def test_every_fetch_fault_has_the_same_error(raw, caplog):
    caplog.set_level("INFO")
    async with site(raw) as server:
        with pytest.raises(InvalidField) as error:
            await fetch(server.fetcher(), server.url())
    assert str(error.value) == f"{NAME}: the image cannot be fetched"
    assert error.value.param == NAME


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"x" * 1001),
        answer(b"x" * 5000, "200 OK", "Connection: close"),
        answer(b"", "200 OK", "Content-Length: 999999999999"),
        answer(b"7d0\r\n" + b"x" * 2000, "200 OK", "Transfer-Encoding: chunked"),
    ],
)
async def test_response_above_the_limit_is_refused(raw):
    async with site(raw) as server:
        with pytest.raises(InvalidField, match="must be at most 1000 bytes"):
            await fetch(server.fetcher(), server.url())


async def test_server_that_does_not_answer_in_time_or_at_all_is_refused():
    async with site() as server:
        with pytest.raises(InvalidField, match="cannot be fetched"):
            await fetch(server.fetcher(timeout=0.25), server.url())
        server.addresses = []
        with pytest.raises(InvalidField, match="cannot be fetched"):
            await fetch(server.fetcher(), server.url())
    server.addresses = ["127.0.0.1"]
    with pytest.raises(InvalidField, match="cannot be fetched"):
        await fetch(server.fetcher(), server.url())


async def test_next_address_is_asked_if_one_does_not_answer():
    async with site(answer()) as server:
        server.addresses = ["127.0.0.2", "127.0.0.1"]
        assert await fetch(server.fetcher(), server.url()) == b"picture"


async def test_names_are_resolved_in_separate_threads(monkeypatch):
    threads = []

    def find(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        threads.append(threading.current_thread().name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    assert await SystemResolver()("pics.example", 80) == ["192.0.2.1"]
    assert threads[0].startswith("media-resolve")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "pics.example.evil.example",
        "sub.pics.example",
        "pics.examples",
        "127.0.0.1",
        "[::1]",
        "2130706433",
        "pics%2eexample",
        "p\u0131cs.example",
    ],
)
async def test_other_domain_is_refused_before_resolution(host):
    server = Site()
    with pytest.raises(InvalidField, match="this server does not fetch images from"):
        await fetch(server.fetcher(), f"http://{host}/a.png")
    assert not server.resolved


@pytest.mark.parametrize("domain", ["", "http://x", "x/y", "x:80", "a b", "*", "x@y"])
def test_invalid_domain_is_refused(domain):
    with pytest.raises(ConfigurationError, match="must be host names such as"):
        Site().fetcher("pics.example", domain)


async def test_allowed_domains_are_normalized():
    async with site(answer(), answer()) as server:
        fetcher = server.fetcher(" pics.example", "[::1]")
        assert await fetch(fetcher, server.url()) == b"picture"
        server.addresses = ["127.0.0.1"]
        assert await fetch(fetcher, server.url(host="[::1]")) == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///a.png",
        "http://pics.example:0/",
        "http://pics.example:99999/",
        "http://[::1/",
        "ftp://pics.example/",
        "http:pics.example",
        "https://pics.example/" + "x" * 9000,
    ],
)
async def test_malformed_url_is_refused_before_resolution(url):
    server = Site()
    with pytest.raises(InvalidField, match="is a malformed URL"):
        await fetch(server.fetcher("all"), url)
    assert not server.resolved


@pytest.mark.parametrize("user", ["user@", "user:pass@", "pics.example@", "@", "\\@"])
async def test_user_names_are_refused(user):
    with pytest.raises(InvalidField, match=r"must not have a user name|does not fetch images from"):
        await fetch(Site().fetcher(), f"http://{user}pics.example/")


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"])
async def test_private_address_is_not_connected_to(address, caplog):
    caplog.set_level("INFO")
    async with site(answer()) as server:
        server.addresses = ["8.8.8.8", address]
        with pytest.raises(InvalidField) as error:
            await fetch(server.fetcher("all", allow_private=False), server.url())
        assert not server.requests
    assert str(error.value) == f"{NAME}: the image cannot be fetched", "and nothing of addresses"
    assert address in caplog.text, "but the operator learns it"


async def test_allowed_redirects_are_followed():
    async with site(redirect("b.png", "301 Moved"), redirect("/c.png"), answer()) as server:
        fetcher = server.fetcher(allow_redirects=True)
        assert await fetch(fetcher, server.url("/x/a.png")) == b"picture"
        assert [request.split()[1] for request in server.requests] == [
            "/x/a.png",
            "/x/b.png",
            "/c.png",
        ]


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/",
        "http://127.0.0.1/",
        "file:///etc/passwd",
        "//evil.example/",
        "http://user@pics.example/",
        "http://[/",
        "ftp://pics.example/",
        "",
    ],
)
async def test_redirect_to_a_forbidden_target_is_refused(target):
    async with site(redirect(target), answer()) as server:
        with pytest.raises(InvalidField) as error:
            await fetch(server.fetcher(allow_redirects=True), server.url())
        assert len(server.requests) == 1
    assert str(error.value) == f"{NAME}: the image cannot be fetched"


async def test_redirects_are_limited_in_number():
    async with site(*[redirect("/a.png")] * 9) as server:
        with pytest.raises(InvalidField, match="cannot be fetched"):
            await fetch(server.fetcher(allow_redirects=True), server.url())
        assert len(server.requests) == 6


async def test_fetch_checks_the_certificate_of_the_host(monkeypatch):
    seen = []

    async def connect(address: str, port: int, **options: object) -> None:
        seen.append((address, port, options["server_hostname"], options["ssl"]))
        raise ssl.SSLCertVerificationError("self-signed")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(InvalidField, match="cannot be fetched"):
        await fetch(Site().fetcher(), "https://pics.example/a.png")
    [(address, port, host, context)] = seen
    assert (address, port, host) == ("127.0.0.1", 443, "pics.example")
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_redirect_from_https_to_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = Site().fetcher(allow_redirects=True)
    redirected = SimpleNamespace(status=302, location="http://pics.example/b.png")
    plain = SimpleNamespace(status=200, body=b"x", is_too_large=False)

    async def answer_by_scheme(parts: SplitResult, max_bytes: int) -> SimpleNamespace:
        return redirected if parts.scheme == "https" else plain

    monkeypatch.setattr(fetcher, "_ask", answer_by_scheme)
    with pytest.raises(InvalidField, match="cannot be fetched"):
        await fetch(fetcher, "https://pics.example/a.png")
