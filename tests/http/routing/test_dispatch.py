"""Paths behind a proxy that leaves its own in front."""

from __future__ import annotations

import pytest

from fastovms.http.routing.dispatch import Dispatcher
from fastovms.http.routing.messages import Request, Response
from fastovms.http.routing.router import Router

ROOT = "/v2/abc/openai"


def handler(request: Request) -> Response:
    return Response(200)


def render_error(path: str, status: int, message: str) -> Response:
    return Response(status, path.encode())


@pytest.fixture
def dispatcher() -> Dispatcher:
    router = Router()
    router.add("GET", "/v1/models", handler)
    router.add("GET", "/v1/models/{id:path}", handler)
    router.add("GET", "/v2/models/{id}", handler)
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
def test_the_root_is_taken_off_wherever_it_is(dispatcher, path, seen):
    request = Request("GET", path)
    assert dispatcher.admit(request) is handler
    assert request.path == seen
    again = Request("GET", request.raw_path)
    assert dispatcher.admit(again) is handler, "parsed heads are kept without the root"
    assert dispatcher.admit(Request("OPTIONS", path)).status == 204


@pytest.mark.parametrize("path", [f"{ROOT}x/v1/models", ROOT, f"{ROOT}/", "/v2/abc/v1/models"])
def test_what_only_looks_like_it(dispatcher, path):
    assert dispatcher.admit(Request("GET", path)).status == 404


def test_errors_are_told_for_the_path_behind_it(dispatcher):
    assert dispatcher.error(f"{ROOT}/v3/models", 413, "").body == b"/v3/models"
    assert Dispatcher(Router(), render_error).error(f"{ROOT}/x", 413, "").body.endswith(b"/x")
