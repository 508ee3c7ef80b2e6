"""Tests of `fastovms/parts/page/page.py`."""

from __future__ import annotations

import configparser
import gzip
import hashlib
import re
from pathlib import Path

import pytest

from docs.check_site import loads_of_page
from fastovms.http.messages import Headers, Request, Response
from fastovms.http.routing import Match, Router
from fastovms.parts.page.bundle import bundle_modules
from fastovms.parts.page.page import PageFiles, read_page_files
from tests.paths import ROOT

# The page's files are whole, light, those of the table, and in the package that is installed.


STATIC = ROOT / "fastovms" / "parts" / "page" / "static"
VENDOR = STATIC / "vendor"
MAX_WEIGHT = 270_000
"""Bytes of all files together, compressed as they are sent."""
MAX_WEIGHT_WITHOUT_KATEX = 600_000
"""Bytes of all files together, not compressed, but for what lays formulas out."""
MAX_LINES = 300

IMPORTED = re.compile(r'(?:^import (?:.* from )?|\bimport\()"([^"]+)"', re.MULTILINE)
OWN = [path for path in STATIC.rglob("*.js") if VENDOR not in path.parents]


def test_the_page_is_light() -> None:
    files = read_page_files()
    assert sum(len(file.zipped) for file in (files.index, *files.others.values())) < MAX_WEIGHT
    weight = sum(len(file.body) for file in (files.index, *files.others.values()))
    katex = len(files.others["vendor/katex.min.js"].body)
    assert weight - katex < MAX_WEIGHT_WITHOUT_KATEX


def test_files_of_others_are_as_they_are_in_the_package_and_all_are_compressed() -> None:
    files = read_page_files()
    for name, file in files.others.items():
        assert name in ("main.js", "main.css") or file.body == (STATIC / name).read_bytes()
        assert gzip.decompress(file.zipped) == file.body
    assert files.others["main.js"].content_type == "text/javascript; charset=utf-8"
    assert "vendor/README.md" not in files.others
    assert set(files.paths) == {"/", *(f"/ui/{files.version}/{name}" for name in files.others)}
    assert read_page_files() == files


@pytest.mark.parametrize(("root", "begins"), [("", "ui/"), ("/llm", "/llm/ui/")])
def test_the_page_names_files_that_there_are(root: str, begins: str) -> None:
    files = read_page_files(root)
    html = files.index.body.decode()
    named = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert named
    start = f"{begins}{files.version}/"
    assert all(name.startswith(start) for name in named)
    assert {name.removeprefix(start) for name in named} <= files.others.keys()
    assert not loads_of_page(html)


def test_the_start_asks_for_one_script_and_one_stylesheet() -> None:
    files = read_page_files()
    html = files.index.body.decode()
    assert re.findall(r'="ui/\w+/([^"]+)"', html) == ["icon.svg", "main.css", "main.js"]
    script, style = (files.others[name].body.decode() for name in ("main.js", "main.css"))
    assert not re.search(r"^import |/\*\*.*\n \*", script, re.MULTILINE)
    assert all(f'\n"{path.relative_to(STATIC)}": () => {{' in script for path in OWN)
    assert all(path.read_text() in style for path in (STATIC / "styles").iterdir())


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"vendor/x\.js is imported, but is not a module"):
        bundle_modules({"main.js": 'import { x } from "./vendor/x.js";\n'}, "main.js")


def test_modules_import_modules_of_their_folder_or_of_lower_ones() -> None:
    for path in OWN:
        for name in IMPORTED.findall(path.read_text()):
            imported = (path.parent / name).resolve()
            assert imported.is_file(), f"{path.name} imports {name}"
            if imported.parent not in (path.parent, VENDOR):
                assert rank(imported) < rank(path), f"{path.name} imports {name}"


def rank(path: Path) -> int:
    folders = (
        ("core",),
        ("session",),
        ("answer",),
        ("chat", "live"),
        ("images",),
        ("compare",),
        ("static",),
    )
    [found] = [at for at, names in enumerate(folders) if path.parent.name in names]
    return found


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_modules_are_short_and_make_html_of_texts_in_one_place(path: Path) -> None:
    source = path.read_text()
    assert source.startswith("/**"), "it does not say what it is for"
    assert len(source.splitlines()) <= MAX_LINES
    makes_html = re.search(r"innerHTML|insertAdjacentHTML|outerHTML|document\.write|eval\(", source)
    assert (makes_html is not None) == (path.name == "markdown.js")


def test_vendored_files_match_the_table() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| .* \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.M
    )
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name not in ("README.md", "LICENSES.txt")
    }
    assert dict(rows) == there


def test_every_file_is_in_the_wheel() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = setup["options.package_data"]["fastovms"].split()
    package = ROOT / "fastovms"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {path for path in STATIC.rglob("*") if path.is_file()} <= packed


def test_every_text_of_the_page_is_used() -> None:
    table = STATIC / "core" / "texts.js"
    keys = re.findall(r'^  "?([\w.-]+)"?: \[', table.read_text(), re.MULTILINE)
    assert len(keys) > 100
    sources = "".join(path.read_text() for path in OWN if path != table)
    made = (
        "set.",
        "effort.",
        "model.",
        "models.",
        "theme.",
        "timing.",
        "compare.",
    )  # whose ends are names of fields and values
    assert [key for key in keys if f'"{key}"' not in sources and not key.startswith(made)] == []


# The page goes out compressed, once, under a policy that lets nothing else in.


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
    files.add_routes(router)
    found = router.match("GET", path)
    assert isinstance(found, Match)
    given = [(name.replace("_", "-"), value) for name, value in fields.items()]
    request = Request("GET", path, headers=Headers(given))
    request.path_params = found.path_params
    response = found.handler(request)
    assert isinstance(response, Response)
    return response


def test_index_page_has_security_headers(files: PageFiles) -> None:
    response = get(files, "/")
    fields = dict(response.headers)
    assert (response.status, response.body) == (200, files.index.body)
    assert response.content_type == "text/html; charset=utf-8"
    assert fields["Content-Security-Policy"] == POLICY
    assert fields["X-Content-Type-Options"] == "nosniff"
    assert fields["Referrer-Policy"] == "no-referrer"
    assert fields["Cache-Control"] == "no-cache"


def test_files_of_the_page_are_immutable_for_caches(files: PageFiles) -> None:
    for name, file in files.others.items():
        response = get(files, f"/ui/{files.version}/{name}")
        assert (response.status, response.body) == (200, file.body)
        assert dict(response.headers)["Cache-Control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("path", ["/ui/0/main.js", "/ui/{version}/no.js", "/ui/{version}/a/b.js"])
def test_unknown_file_is_a_404(files: PageFiles, path: str) -> None:
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
def test_page_is_compressed_for_clients_that_accept_gzip(
    files: PageFiles, accepted: str, is_zipped: bool
) -> None:
    response = get(files, "/", accept_encoding=accepted)
    fields = dict(response.headers)
    assert fields["Vary"] == "Accept-Encoding"
    assert fields.get("Content-Encoding") == ("gzip" if is_zipped else None)
    body = gzip.decompress(response.body) if is_zipped else response.body
    assert body == files.index.body


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_matching_etag_is_answered_with_304(files: PageFiles, accepted: str) -> None:
    tag = dict(get(files, "/", accept_encoding=accepted).headers)["ETag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        response = get(files, "/", accept_encoding=accepted, if_none_match=known)
        assert (response.status, response.body) == (304, b"")
        assert dict(response.headers)["ETag"] == tag
    other = "identity" if accepted == "gzip" else "gzip"
    assert get(files, "/", accept_encoding=other, if_none_match=tag).status == 200
