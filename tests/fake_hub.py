"""A Hugging Face hub on loopback with the endpoints that pulling a model needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """A hub.

    Models by id, each a mapping of paths to contents, with a branch "main" and a tag "v1" for the
    same commit.

    Attributes:
        url: the server's URL.
        downloads: the paths of all downloaded files.
        broken: a file that cannot be downloaded, or None.
        status: the status of every answer, or None.
        token: the token that every request needs, or None.
    """

    def __init__(self, models: Mapping[str, Mapping[str, bytes]]) -> None:
        self.models = models
        self.url = ""
        self.downloads: list[str] = []
        self.broken: str | None = None
        self.status: int | None = None
        self.token: str | None = None

    def tree(self, model_id: str) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": path, "size": len(data), "oid": _digest(data)}
            for path, data in self.models[model_id].items()
        ]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def model_files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files of a model without the metadata of a pull."""
    return {path: data for path, data in files_of(folder).items() if not path.endswith(".pulled")}


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def _answer(self) -> None:
            path = urlsplit(self.path).path
            api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path)
            found = api or file
            authorized = hub.token in (
                None,
                (self.headers["Authorization"] or "")[len("Bearer ") :],
            )
            if hub.status is not None:
                self._send(hub.status)
            elif found is None or found[1] not in hub.models or not authorized:
                self._send(404, error="RepoNotFound")
            elif api is not None and api[3] not in (None, "main", "v1", COMMIT):
                self._send(404, error="RevisionNotFound")
            elif api is not None:
                tree = hub.tree(api[1])
                siblings = [{"rfilename": file["path"]} for file in tree]
                info = {"id": api[1], "sha": COMMIT, "siblings": siblings, "tags": []}
                self._send(200, json.dumps(tree if api[2] == "tree" else info).encode())
            elif file is not None:
                self._send_file(file[2], hub.models[file[1]].get(file[2]))

        def _send_file(self, path: str, data: bytes | None) -> None:
            if data is None:
                self._send(404, error="EntryNotFound")
                return
            if self.command == "GET":
                hub.downloads.append(path)
                if path == hub.broken:
                    self._send(500)
                    return
            self._send(200, data, {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": COMMIT})

        def _send(
            self,
            status: int,
            data: bytes = b"",
            fields: Mapping[str, str] | None = None,
            *,
            error: str | None = None,
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in (fields or {}).items():
                self.send_header(name, value)
            if error is not None:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    return Handler
