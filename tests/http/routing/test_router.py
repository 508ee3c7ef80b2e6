"""Paths to handlers."""

from __future__ import annotations

import pytest

from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import Match, MethodNotAllowed, Router


def handler(name: str):  # type: ignore[no-untyped-def]
    def handle(request: Request) -> Response:
        return Response(200, name.encode())

    return handle


@pytest.fixture
def router() -> Router:
    router = Router()
    for method, pattern in (
        ("GET", "/"),
        ("GET", "/v1/models"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/{id}"),
        ("DELETE", "/v1/models/{id}"),
        ("GET", "/v1/models/special"),
        ("GET", "/v2/models/{name:path}/versions/{version}/ready"),
        ("GET", "/v2/models/{name:path}"),
        ("POST", "/files/{rest:path}"),
    ):
        router.add(method, pattern, handler(f"{method} {pattern}"))
    return router


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/v1/models", "/v1/models", {}),
        ("HEAD", "/v1/models", "/v1/models", {}),
        ("POST", "/v1/models", "/v1/models", {}),
        ("GET", "/v1/%6Dodels", "/v1/models", {}),
        ("GET", "/v1/models/special", "/v1/models/special", {}),
        ("GET", "/v1/models/m-1", "/v1/models/{id}", {"id": "m-1"}),
        ("DELETE", "/v1/models/m", "/v1/models/{id}", {"id": "m"}),
        ("GET", "/v1/models/org%2Fm", "/v1/models/{id}", {"id": "org/m"}),
        ("GET", "/v1/models/a%20b%C3%A9", "/v1/models/{id}", {"id": "a bé"}),
        ("GET", "/v1/models/%00", "/v1/models/{id}", {"id": "\0"}),
        ("GET", "/v2/models/m", "/v2/models/{name:path}", {"name": "m"}),
        ("GET", "/v2/models/org/m", "/v2/models/{name:path}", {"name": "org/m"}),
        ("GET", "/v2/models/org%2Fm/x", "/v2/models/{name:path}", {"name": "org/m/x"}),
        (
            "GET",
            "/v2/models/a/b/c/versions/1/ready",
            "/v2/models/{name:path}/versions/{version}/ready",
            {"name": "a/b/c", "version": "1"},
        ),
        ("POST", "/files/a/b", "/files/{rest:path}", {"rest": "a/b"}),
    ],
)
def test_match(
    method: str, path: str, pattern: str, params: dict[str, str], router: Router
) -> None:
    found = router.match(method, path)
    assert isinstance(found, Match)
    assert found.pattern == pattern
    assert found.path_params == params


@pytest.mark.parametrize(
    "path",
    ["", "/v1", "/v1/models/", "/v1/models/a/b", "/v1%2Fmodels", "/V1/models", "/files", "//"],
)
def test_no_match(path: str, router: Router) -> None:
    assert router.match("GET", path) is None
    assert router.allowed(path) is None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/models", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/models/x", "DELETE, GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/models/special", "GET, HEAD, OPTIONS"),
        ("GET", "/files/x", "OPTIONS, POST"),
    ],
)
def test_method_not_allowed(method: str, path: str, allowed: str, router: Router) -> None:
    assert router.match(method, path) == MethodNotAllowed(allowed)
    assert router.allowed(path) == allowed


def test_the_whole_server(router: Router) -> None:
    assert router.allowed("*") == "DELETE, GET, HEAD, OPTIONS, POST"


def test_while_more_routes_are_to_come(router: Router) -> None:
    router.more_to_come = True
    assert router.allowed("/v1/later") == router.allowed("*")
    assert router.allowed("/files/x") == "OPTIONS, POST"
    assert router.match("GET", "/v1/later") is None
    router.more_to_come = False
    assert router.allowed("/v1/later") is None


@pytest.mark.parametrize("pattern", ["v1", "/{a:path}/{b:path}"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match="route"):
        Router().add("GET", pattern, handler("x"))


def test_the_routes_are_listed_without_the_heads_that_gets_serve(router: Router):
    assert list(router.routes()) == [
        ("GET", "/"),
        ("GET", "/v1/models"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/special"),
        ("GET", "/v1/models/{id}"),
        ("DELETE", "/v1/models/{id}"),
        ("GET", "/v2/models/{name:path}/versions/{version}/ready"),
        ("GET", "/v2/models/{name:path}"),
        ("POST", "/files/{rest:path}"),
    ]
