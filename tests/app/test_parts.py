"""Tests of `fastovms/app/parts.py` and `fastovms/app/late.py`."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fastovms.app import parts
from fastovms.app.parts import FORMS, PARTS, Part, Parts, PartSettings
from fastovms.http.messages import Request, UploadHandler
from fastovms.http.routing import Match, Router
from fastovms.parts.batches.service import BatchService
from fastovms.server_config import DEMO_MODEL, BatchConfig, FilesConfig
from fastovms.state.sqlite.database import UnusableFile
from fastovms.state.sqlite.location import AwaitedFile
from fastovms.state.state_store import StateStore
from fastovms.system.threads import ShutdownWaits
from tests.paths import ROOT
from tests.real_server import NAME, PROMPT, Server, start_server, stop_server
from tests.test_extensions import install

__all__ = ["make_api"]  # a fixture
from tests.api.conftest import make_api

_MODULES = """
import sys

from fastovms.api.endpoint import Route, json_response

def endpoints(context):
    yield Route("GET", "/v1/modules", lambda request: json_response(sorted(sys.modules)))
"""


SWITCHED = {
    "comparison": (),  # which is made at the first start
    "drafts.draft_model": ("--draft-model", str(DEMO_MODEL)),
    "prefix_cache": ("--prefix-cache-disk-size", "64M"),
}
"""The parts that a switch imports, by switch."""

UNUSED = (
    *SWITCHED,
    "adapters",
    "beams",
    "client",
    "decode_kernels",
    "doctor",
    "drafts.files",
    "genai",
    "hub",
    "load_test",
    "media",
    "ovms.graph",
    "postgres",
    "ray_serve",
    "state_transfer",
    "tuning.measurement",
    "tuning.quality",
    "tuning.ways",
)
"""Modules that a server with one text model does not import before a request needs them."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Iterator[Path]:
    """A directory for servers that list their imported modules."""
    directory = tmp_path_factory.mktemp("extension")
    install(directory, _MODULES, endpoints="modules = my_package:endpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{directory}:{ROOT}")
        yield directory


def start(directory: Path, *flags: str) -> Server:
    state, cache = str(directory / "state"), str(directory / "cache")
    return start_server("--state-dir", state, "--cache-dir", cache, *flags)


@pytest.fixture(scope="module")
def modules_of_all(directory: Path) -> set[str]:
    """The modules of a server with all of `SWITCHED`."""
    server = start(directory, *(word for words in SWITCHED.values() for word in words))
    try:
        return modules(server)
    finally:
        stop_server(server)


@pytest.fixture(scope="module")
def server(directory: Path, modules_of_all: set[str]) -> Iterator[Server]:
    """A server with one text model at its second start."""
    server = start(directory, "--prefix-cache-disk-size", "0")
    yield server
    stop_server(server)


def module_of(part: Part) -> str:
    return "fastovms." + part.entry.partition(":")[0]


def modules(server: Server) -> set[str]:
    with urllib.request.urlopen(f"{server.url}/v1/modules", timeout=60) as response:
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


def test_unused_parts_are_not_imported(server: Server, modules_of_all: set[str]) -> None:
    """This is the server's first test, because other tests use its parts."""
    unused = tuple(f"fastovms.parts.{name}" for name in UNUSED)
    imported = modules(server)
    assert [name for name in imported if name.startswith(unused)] == []
    assert not {"huggingface_hub", "opentelemetry", "psycopg"} & imported
    assert {f"fastovms.parts.{name}" for name in SWITCHED} <= modules_of_all


def test_the_first_beam_search_imports_it(server: Server) -> None:
    assert "fastovms.parts.beams" not in modules(server)
    fields = {"model": NAME, "prompt": PROMPT, "max_tokens": 4}
    body = json.dumps({**fields, "use_beam_search": True, "n": 2}).encode()
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: server.post("/v1/completions", body), range(2))) == [
            200,
            200,
        ]
    assert "fastovms.parts.beams" in modules(server)


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
    assert b"cannot import its feature messages: ModuleNotFoundError" in first.body
    assert caplog.text.count("the feature messages is not available") == 1
    third = await match.handler(request)
    assert third.status == 503
    assert caplog.text.count("the feature messages is not available") == 2


async def begun(parts: Parts, api: Any) -> list[str]:
    """Returns the parts that start without a request."""
    parts.add_routes(api.router, api.context)
    parts.begin_work()
    assert parts._beginning is not None
    await parts._beginning
    names = list(parts._running)
    await parts.close(ShutdownWaits(10.0))
    return names


async def test_batches_begin_without_a_request_if_there_are_files(make_api, tmp_path) -> None:
    settings = PartSettings(directory=tmp_path)
    assert await begun(Parts(settings), make_api()) == []
    earlier = BatchService(tmp_path, FilesConfig(), BatchConfig(), time.time)
    await earlier.close()
    assert await begun(Parts(settings), make_api()) == ["batches"]


async def test_batches_begin_without_a_request_if_their_directory_is_missing(
    make_api, tmp_path
) -> None:
    settings = PartSettings(directory=tmp_path / "not_mounted")
    assert await begun(Parts(settings), make_api()) == ["batches"]


async def test_batches_begin_without_a_request_if_the_disk_is_not_available_yet(
    make_api, tmp_path
) -> None:
    def open_file() -> Any:
        raise UnusableFile("Permission denied")

    store = StateStore(AwaitedFile(open_file, "Permission denied"))
    settings = PartSettings(store, directory=tmp_path)
    assert set(await begun(Parts(settings), make_api())) == {"batches", "responses"}
    await store.close()
