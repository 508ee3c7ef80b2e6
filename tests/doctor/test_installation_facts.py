from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.service_config import StateConfig
from fastovms.doctor.installation_facts import InstallationFacts, read_installation


def read(
    *,
    engine: EngineConfig | None = None,
    http: HttpConfig | None = None,
    security: SecurityConfig | None = None,
    state: StateConfig | None = None,
) -> InstallationFacts:
    return read_installation(
        engine or EngineConfig(cache_dir=""),
        http or HttpConfig(host=None),
        security or SecurityConfig(),
        state or StateConfig(enable_store=False),
        {},
    )


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    facts = read(
        engine=EngineConfig(cache_dir=str(tmp_path)),
        state=StateConfig(state_dir=str(tmp_path / "new/state")),
    )
    cache, state = facts.directories
    assert (cache.path, cache.exists, cache.is_writable) == (tmp_path, True, True)
    assert (state.path, state.exists, state.is_writable) == (tmp_path / "new/state", False, True)
    assert cache.free == pytest.approx(state.free, rel=0.1)
    assert not (tmp_path / "new").exists(), "nothing is made"
    [broken] = read(engine=EngineConfig(cache_dir=str(tmp_path / "file"))).directories
    assert not broken.is_writable


def test_a_directory_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/state"):
        engine = EngineConfig(cache_dir=str(tmp_path / place))
        facts = read_installation(engine, HttpConfig(), SecurityConfig(), StateConfig(), {})
        cache = facts.directories[0]
        assert (cache.exists, cache.is_writable) == (False, False)


def test_what_needs_no_directory() -> None:
    [cache] = read(state=StateConfig(state_dir=":memory:")).directories
    assert cache.path is None


def test_secrets(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k")
    keys.chmod(0o640)
    facts = read(
        security=SecurityConfig(api_key_file=keys),
        http=HttpConfig(host=None, tls_certificate="cert.pem", tls_key=str(tmp_path / "none")),
        state=StateConfig(enable_store=False, password_file=keys),
    )
    found = [(secret.name, secret.mode, secret.is_readable) for secret in facts.secrets]
    assert found == [
        ("API keys", 0o640, True),
        ("TLS key", None, False),
        ("password of the state", 0o640, True),
    ]


def test_addresses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = (f"unix:{tmp_path}/s", "unix:/none/s", "nowhere", "[::1]:0", "no.invalid:80")
        facts = read(http=HttpConfig(host="127.0.0.1", port=port, listen=listen))
    faults = {found.address: found.fault for found in facts.addresses}
    assert faults.pop(f"127.0.0.1:{port}") == "Address already in use"
    assert faults.pop(f"unix:{tmp_path}/s") is None
    assert faults.pop("unix:/none/s") == "/none cannot be written"
    assert "expected host:port" in (faults.pop("nowhere") or "")
    assert faults.pop("no.invalid:80")
    assert set(faults) == {"[::1]:0"}
    assert read(http=HttpConfig(host="", port=0)).addresses[0].fault is None


def test_a_database_that_does_not_answer() -> None:
    database = read(state=StateConfig(state_url="postgresql://u:secret@127.0.0.1:1/d")).database
    assert database is not None
    assert database.address == "postgresql://127.0.0.1/d"
    assert "refused" in (database.fault or "")
    assert "secret" not in str(database)
    wrong = read(state=StateConfig(state_url="x://")).database
    assert wrong is not None
    assert "no URL that libpq understands" in (wrong.fault or "")
    assert read().database is None
