"""The page goes out compressed, once, under a policy that lets nothing else in."""

from __future__ import annotations

import gzip

import pytest

from fastovms.http.routing.messages import Headers, Request, Response
from fastovms.http.routing.router import Match, Router
from fastovms.ui.page_files import PageFiles, read_page_files
from fastovms.ui.page_routes import add_page_routes

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)


@pytest.fixture(scope="module")
def files() -> PageFiles:
    return read_page_files()


def get(files: PageFiles, path: str, **fields: str) -> Response:
    router = Router()
    add_page_routes(router, files)
    found = router.match("GET", path)
    assert isinstance(found, Match)
    given = [(name.replace("_", "-"), value) for name, value in fields.items()]
    request = Request("GET", path, headers=Headers(given))
    request.path_params = found.path_params
    response = found.handler(request)
    assert isinstance(response, Response)
    return response


def test_the_page(files: PageFiles) -> None:
    response = get(files, "/")
    fields = dict(response.headers)
    assert (response.status, response.body) == (200, files.index.body)
    assert response.content_type == "text/html; charset=utf-8"
    assert fields["Content-Security-Policy"] == POLICY
    assert fields["X-Content-Type-Options"] == "nosniff"
    assert fields["Referrer-Policy"] == "no-referrer"
    assert fields["Cache-Control"] == "no-cache"


def test_its_files_are_kept_for_ever(files: PageFiles) -> None:
    for name, file in files.others.items():
        response = get(files, f"/ui/{files.version}/{name}")
        assert (response.status, response.body) == (200, file.body)
        assert dict(response.headers)["Cache-Control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("path", ["/ui/0/main.js", "/ui/{version}/no.js", "/ui/{version}/a/b.js"])
def test_there_is_no_such_file(files: PageFiles, path: str) -> None:
    response = get(files, path.format(version=files.version))
    assert response.status == 404
    assert response.content_type == "application/json"


@pytest.mark.parametrize(
    ("accepted", "is_zipped"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.2", True),
        ("*", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("", False),
    ],
)
def test_what_takes_gzip_gets_it(files: PageFiles, accepted: str, is_zipped: bool) -> None:
    response = get(files, "/", accept_encoding=accepted)
    fields = dict(response.headers)
    assert fields["Vary"] == "Accept-Encoding"
    assert fields.get("Content-Encoding") == ("gzip" if is_zipped else None)
    body = gzip.decompress(response.body) if is_zipped else response.body
    assert body == files.index.body


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_what_a_browser_has_is_not_sent_again(files: PageFiles, accepted: str) -> None:
    tag = dict(get(files, "/", accept_encoding=accepted).headers)["ETag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        response = get(files, "/", accept_encoding=accepted, if_none_match=known)
        assert (response.status, response.body) == (304, b"")
        assert dict(response.headers)["ETag"] == tag
    other = "identity" if accepted == "gzip" else "gzip"
    assert get(files, "/", accept_encoding=other, if_none_match=tag).status == 200
