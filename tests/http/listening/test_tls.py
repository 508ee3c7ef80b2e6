"""TLS: its files, its versions, and what a refused upload gets."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from fastovms.errors import ConfigurationError
from tests.http.client import talk
from tests.http.conftest import Start
from tests.http.more_cases import get
from tests.paths import TLS


async def tls_get(port: int, certificate: Path) -> tuple[bytes, str | None]:
    context = ssl.create_default_context(cafile=certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    writer.write(get("/health") + get("/stream", "Connection: close"))
    data = await reader.read()
    alpn = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    return data, alpn


async def test_tls_and_its_reload(start: Start, tmp_path: Path) -> None:
    certificate, key = tmp_path / "crt", tmp_path / "key"
    shutil.copy(TLS / "first.crt", certificate)
    shutil.copy(TLS / "first.key", key)
    running = await start(tls_certificate=str(certificate), tls_key=str(key))
    assert running.server.addresses[0].startswith("https://127.0.0.1:")
    data, alpn = await tls_get(running.port, TLS / "first.crt")
    assert data.count(b" 200 OK") == 2
    assert data.endswith(b"0\r\n\r\n")
    assert alpn == "http/1.1"

    shutil.copy(TLS / "second.crt", certificate)
    with pytest.raises(ConfigurationError, match="cannot use the TLS files"):
        running.server.reload_tls()  # the key is still the first one's
    assert (await tls_get(running.port, TLS / "first.crt"))[1] == "http/1.1"
    shutil.copy(TLS / "second.key", key)
    running.server.reload_tls()
    with pytest.raises(ssl.SSLCertVerificationError):
        await tls_get(running.port, TLS / "first.crt")
    assert (await tls_get(running.port, TLS / "second.crt"))[0].count(b" 200 OK") == 2


async def test_tls_refuses_what_is_old_or_plain(start: Start) -> None:
    running = await start(
        tls_certificate=str(TLS / "first.crt"), tls_key=str(TLS / "first.key"), head_timeout=0.2
    )
    assert (await talk(running.port, get(), answers=2)).data[:4] != b"HTTP"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
    writer.close()


async def test_a_refused_upload_over_tls_gets_its_answer(start: Start) -> None:
    """TLS cannot close half a connection: the rest is read until the deadline."""
    running = await start(tls_certificate=str(TLS / "first.crt"), tls_key=str(TLS / "first.key"))
    context = ssl.create_default_context(cafile=TLS / "first.crt")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
    )
    writer.write(get("/echo", "Content-Length: 9000000", method="POST") + b"x" * 500_000)
    assert b" 413 " in await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none.crt", None, "No such file"),
        ("first.crt", None, "cannot use"),
        ("first.crt", "second.key", "cannot use"),
        (None, "first.key", "without a certificate"),
    ],
)
async def test_bad_tls_files(
    certificate: str | None, key: str | None, message: str, start: Start
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await start(
            tls_certificate=certificate and str(TLS / certificate),
            tls_key=key and str(TLS / key),
        )
