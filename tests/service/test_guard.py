"""Who is let in: by key, and at a time at which requests are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.api.admin.status import DOCS_PATHS, HEALTH_PATHS, ServerPhase, ServerStatus
from fastovms.api.serving.served import ServedModels
from fastovms.config.http_config import SecurityConfig
from fastovms.errors import ConfigurationError
from fastovms.http.routing.messages import Headers, Request
from fastovms.service.guard import Guard


def asked(path: str = "/v1/models", key: str | None = None) -> Request:
    fields = [] if key is None else [("authorization", f"Bearer {key}")]
    return Request("GET", path, headers=Headers(fields))


def guard(
    environ: dict[str, str], phase: ServerPhase = ServerPhase.SERVING, **security: object
) -> Guard:
    status = ServerStatus.serving(ServedModels([]))
    status.phase = phase
    return Guard(status, SecurityConfig(**security), environ)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "phase", "request_", "status"),
    [
        ({}, ServerPhase.SERVING, asked(), None),
        ({"API_KEY": "a"}, ServerPhase.SERVING, asked(), 401),
        ({"API_KEY": "a"}, ServerPhase.SERVING, asked(key="a"), None),
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked(key="a"), 503),
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked(), 401),  # strangers learn nothing
        ({}, ServerPhase.CLOSING, asked(), 503),
        *[({"API_KEY": "a"}, ServerPhase.LOADING, asked(path), None) for path in HEALTH_PATHS],
        ({"API_KEY": "a"}, ServerPhase.LOADING, asked("/metrics"), 401),
    ],
)
def test_who_is_let_in(
    environ: dict[str, str], phase: ServerPhase, request_: Request, status: int | None
) -> None:
    keeper = guard(environ, phase)
    refusal = keeper(request_)
    assert (None if refusal is None else refusal.status) == status
    assert keeper.needs_key is bool(environ)


def test_the_description_of_the_api_is_open_where_it_is_served() -> None:
    for path in DOCS_PATHS:
        assert guard({"API_KEY": "a"})(asked(path)) is None
        refusal = guard({"API_KEY": "a"}, enable_docs=False)(asked(path))
        assert refusal is not None
        assert refusal.status == 401


def test_the_page_is_open_at_any_time() -> None:
    keeper = Guard(ServerStatus(), SecurityConfig(), {"API_KEY": "a"}, ["/", "/ui/1/main.js"])
    assert keeper(asked("/")) is None
    assert keeper(asked("/ui/1/main.js")) is None
    for path in ("/ui/1/other.js", "/v1/models"):
        refusal = keeper(asked(path))
        assert refusal is not None
        assert refusal.status == 401


def test_keys_are_read_again_and_those_before_stay_where_they_cannot(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("old\n")
    keeper = guard({}, api_key_file=path)
    path.write_text("new\n")
    assert keeper(asked(key="old")) is None
    keeper.reload()
    assert keeper(asked(key="old")) is not None
    assert keeper(asked(key="new")) is None
    path.unlink()
    with pytest.raises(ConfigurationError):
        keeper.reload()
    assert keeper(asked(key="new")) is None


@pytest.mark.parametrize(
    ("client", "fields", "is_admin"),
    [
        ("127.0.0.1:5", [], True),
        ("[::1]:5", [], True),
        ("", [], True),
        ("10.0.0.5:5", [], False),
        ("127.0.0.1:5", [("host", "localhost"), ("x-request-id", "a")], True),
        *(
            (client, [(name, "10.0.0.5")], False)
            for client in ("127.0.0.1:5", "")
            for name in (
                "Forwarded",
                "X-Forwarded-For",
                "X-Forwarded-Host",
                "X-Forwarded-Proto",
                "X-Forwarded",
                "X-Real-IP",
                "Via",
                "X-Client-IP",
                "CF-Connecting-IP",
                "True-Client-IP",
                "Proxy-Connection",
                "X-Envoy-External-Address",
                "Tailscale-User-Login",
            )
        ),
    ],
)
def test_without_keys_this_machine_is_the_operator(
    client: str, fields: list[tuple[str, str]], is_admin: bool
) -> None:
    request = Request("POST", "/v1/models/a/load", headers=Headers(fields), client=client)
    assert guard({})(request) is None
    assert request.is_admin is is_admin
    request = Request("POST", "/v1/models/a/load", headers=asked(key="a").headers, client=client)
    assert guard({"API_KEY": "a"})(request) is None
    assert request.is_admin is False
