"""Tests of `fastovms/http/routing.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastovms.http.messages import Request, Response
from fastovms.http.routing import Dispatcher, Match, MethodNotAllowed, Router

# Paths of handlers.


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
def test_match_finds_the_most_specific_route_and_its_parameters(
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
def test_unknown_paths_match_no_route(path: str, router: Router) -> None:
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
def test_other_methods_of_a_path_get_the_allowed_ones(
    method: str, path: str, allowed: str, router: Router
) -> None:
    assert router.match(method, path) == MethodNotAllowed(allowed)
    assert router.allowed(path) == allowed


def test_unknown_path_may_have_any_method_while_more_routes_are_to_come(router: Router) -> None:
    router.more_to_come = True
    assert router.allowed("/v1/later") == router.allowed("*") == "DELETE, GET, HEAD, OPTIONS, POST"
    assert router.allowed("/files/x") == "OPTIONS, POST"
    assert router.match("GET", "/v1/later") is None
    router.more_to_come = False
    assert router.allowed("/v1/later") is None


@pytest.mark.parametrize("pattern", ["v1", "/{a:path}/{b:path}"])
def test_malformed_route_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="route"):
        Router().add("GET", pattern, handler("x"))


# Paths behind a proxy that keeps its own prefix.


ROOT = "/v2/abc/openai"


def dispatch_handler(request: Request) -> Response:
    return Response(200)


def render_error(request: Request, status: int, message: str) -> Response:
    return Response(status, request.path.encode())


@pytest.fixture
def dispatcher() -> Dispatcher:
    router = Router()
    router.add("GET", "/v1/models", dispatch_handler)
    router.add("GET", "/v1/models/{id:path}", dispatch_handler)
    router.add("GET", "/v2/models/{id}", dispatch_handler)
    return Dispatcher(router, render_error, root_path=ROOT)


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        (f"{ROOT}/v1/models", "/v1/models"),
        ("/v1/models", "/v1/models"),
        (f"{ROOT}{ROOT}/v1/models", "/v1/models"),
        (f"{ROOT}/v1/models/a%2Fb", "/v1/models/a/b"),
        (f"/v1/models{ROOT}", f"/v1/models{ROOT}"),
        ("/v2/models/abc", "/v2/models/abc"),
    ],
)
def test_root_path_is_taken_off_wherever_it_is(dispatcher, path, seen):
    request = Request("GET", path)
    assert dispatcher.admit(request) is dispatch_handler
    assert request.path == seen
    again = Request("GET", request.raw_path)
    assert dispatcher.admit(again) is dispatch_handler, "parsed heads are kept without the root"
    assert dispatcher.admit(Request("OPTIONS", path)).status == 204


@pytest.mark.parametrize("path", [f"{ROOT}x/v1/models", ROOT, f"{ROOT}/", "/v2/abc/v1/models"])
def test_path_that_only_resembles_the_root_path_is_not_found(dispatcher, path):
    assert dispatcher.admit(Request("GET", path)).status == 404


def test_errors_name_the_path_without_the_root_path(dispatcher):
    def error_of(dispatcher, path):
        return dispatcher.error(Request("GET", path), 413, "").body

    assert error_of(dispatcher, f"{ROOT}/v3/models") == b"/v3/models"
    assert error_of(Dispatcher(Router(), render_error), f"{ROOT}/x").endswith(b"/x")
    assert error_of(dispatcher, "") == b"", "its head could not be read"


class Slashes:
    """A reference that treats several slashes as one and tracks positions."""

    def tidy(self, raw_path: str) -> str:
        while "//" in raw_path:
            raw_path = raw_path.replace("//", "/")
        return raw_path

    def advice(self, raw_path: str, root: str, exists: Callable[[str], bool]) -> str:
        meant = f"/v1{raw_path}"
        return f": {root}{meant}" if exists(meant) else ""


def forbids_models(request: Request) -> Response | None:
    return Response(403) if request.path == "/v1/models" else None


@pytest.mark.parametrize("check", ["gates", "authenticate"])
@pytest.mark.parametrize("root", ["", ROOT, "/v1/x"])
@pytest.mark.parametrize("path", ["/v1/models", "//v1//models", "/v1//models", "///v1/models"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
def test_every_spelling_is_checked_as_the_registered_one(check, root, path, method):
    router = Router()
    router.add("GET", "/v1/models", dispatch_handler)
    checks = {"gates": [forbids_models], "authenticate": forbids_models}
    dispatcher = Dispatcher(
        router,
        lambda path, status, message: Response(status),
        root_path=root,
        paths=Slashes(),
        **{check: checks[check]},
    )
    for given in (path, f"{root}{path}", f"{root}/{path}"):
        assert dispatcher.admit(Request(method, given)).status == 403


def test_slashes_and_root_paths_are_removed_in_turn(dispatcher):
    """The root follows the slashes, and slashes follow the root."""
    spelled = Dispatcher(dispatcher._router, render_error, root_path="/v1/x", paths=Slashes())
    request = Request("GET", "/v1//x//v1/x/v1//models")
    assert spelled.admit(request) is dispatch_handler
    assert request.path == request.raw_path == "/v1/models"
    assert spelled.error(Request("GET", "/v1//x//v3//y"), 413, "").body == b"/v3/y"


def test_not_found_suggests_the_path_that_is_meant():
    router = Router()
    router.add("POST", "/v1/x", dispatch_handler)
    tell = lambda path, status, message: Response(status, message.encode())  # noqa: E731
    dispatcher = Dispatcher(router, tell, root_path=ROOT, paths=Slashes())
    for method in ("GET", "POST", "OPTIONS"):
        for path, message in (
            ("/x", "no such path: /x: /v1/x"),
            (f"{ROOT}/x", f"no such path: /x: {ROOT}/v1/x"),
            ("/y", "no such path: /y"),
        ):
            answer = dispatcher.admit(Request(method, path))
            assert (answer.status, answer.body.decode()) == (404, message)
