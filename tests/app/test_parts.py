"""Tests of `fastovms/app/parts.py` and `fastovms/app/late.py`."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fastovms.app import parts
from fastovms.app.parts import FORMS, PARTS, Part, Parts, PartSettings
from fastovms.http.messages import Request, UploadHandler
from fastovms.http.routing import Match, Router
from tests.paths import ROOT
from tests.real_server import Server, start_server, stop_server
from tests.test_extensions import install

__all__ = ["make_api"]  # a fixture
from tests.api.conftest import make_api

_MODULES = """
import sys

from fastovms.api.endpoint import Route, json_response

def endpoints(context):
    yield Route("GET", "/v1/modules", lambda request: json_response(sorted(sys.modules)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """A server with one text model that lists its modules."""
    directory = tmp_path_factory.mktemp("extension")
    install(directory, _MODULES, endpoints="modules = my_package:endpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{directory}:{ROOT}")
        server = start_server("--state-dir", str(directory / "state"))
    yield server
    stop_server(server)


def module_of(part: Part) -> str:
    return "fastovms." + part.entry.partition(":")[0]


def modules(server: Server) -> set[str]:
    with urllib.request.urlopen(f"{server.url}/v1/modules", timeout=20) as response:
        return set(json.load(response))


def status_of(server: Server, route: str, *, is_form: bool) -> int:
    method, path = route.split(" ")
    path = path.replace("{", "").replace("}", "")
    if is_form:
        content_type = "multipart/form-data; boundary=b"
        body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
    else:
        content_type, body = "application/json", b"{}"
    request = urllib.request.Request(
        server.url + path,
        body if method == "POST" else None,
        {"Content-Type": content_type},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_is_imported_by_its_first_requests(server: Server, part: Part) -> None:
    assert module_of(part) not in modules(server)
    is_form = bool(part.forms)
    route = (part.forms or part.routes)[0]
    with ThreadPoolExecutor(2) as threads:
        statuses = list(threads.map(lambda _: status_of(server, route, is_form=is_form), range(2)))
    assert module_of(part) in modules(server)
    later = status_of(server, route, is_form=is_form)
    assert statuses == [later, later]
    assert later < 500


def test_the_table_has_the_routes_of_the_parts(make_api) -> None:
    router, all_parts = Router(), Parts(PartSettings(shows_docs=True))
    all_parts.add_routes(router, make_api().context)

    def handlers() -> dict[tuple[str, str], Any]:
        found = {}
        for method, pattern in router.routes():
            match = router.match(method, pattern.replace("{", "").replace("}", ""))
            assert isinstance(match, Match)
            found[method, pattern] = match.handler
        return found

    before = handlers()
    all_parts.load_now()
    after = handlers()
    assert before.keys() == after.keys() == router.operations.keys()
    assert [route for route in before if before[route] is after[route]] == []
    forms = {route[1] for route in after if isinstance(after[route], UploadHandler)}
    assert forms == set(FORMS)


async def test_a_part_that_cannot_be_imported_is_tried_again(make_api, monkeypatch, caplog) -> None:
    router = Router()
    [messages] = [part for part in PARTS if part.name == "messages"]
    monkeypatch.setattr(parts, "PARTS", [messages._replace(entry="parts.nowhere:endpoints")])
    Parts().add_routes(router, make_api().context)
    request = Request("POST", "/v1/messages")
    match = router.match("POST", "/v1/messages")
    assert isinstance(match, Match)
    first, second = await asyncio.gather(match.handler(request), match.handler(request))
    assert first.status == second.status == 503
    assert b"cannot import its part messages: ModuleNotFoundError" in first.body
    assert caplog.text.count("the part messages cannot be imported") == 1
    third = await match.handler(request)
    assert third.status == 503
    assert caplog.text.count("the part messages cannot be imported") == 2
