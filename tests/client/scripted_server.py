"""An OpenAI-compatible server in a thread that sends scripted answers."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.paths import ROOT

TLS: Final = ROOT / "tests/http/tls"


@dataclass
class Script:
    """The answers to requests.

    Attributes:
        sends_usage: whether streams end with their usage.
        statuses: the statuses of the next answers; 200 where none is left.
        events: the events of a streamed chat, instead of one event per token.
        pause: the seconds before each event.
        received: the headers and bodies of all requests with a body.
        most_at_once: the greatest number of concurrent requests.
    """

    sends_usage: bool = True
    statuses: list[int] = field(default_factory=list)
    events: list[dict[str, Any]] | None = None
    models: list[str] = field(default_factory=lambda: ["scripted"])
    pause: float = 0.0
    received: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    num_running: int = 0

    def wait_until_received(self, number: int, deadline: float = 60.0) -> None:
        """Returns when the given number of requests with a body were received."""
        end = time.monotonic() + deadline
        while len(self.received) < number:
            assert time.monotonic() < end, f"{len(self.received)} requests have come"
            time.sleep(0.01)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": name} for name in self.script.models]})

    def do_POST(self) -> None:
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with script.lock:
            script.received.append((dict(self.headers), body))
            status = script.statuses.pop(0) if script.statuses else 200
            script.num_running += 1
            script.most_at_once = max(script.most_at_once, script.num_running)
        try:
            if status != 200:
                self._answer(status, {"error": {"message": f"status {status}"}})
            else:
                self._stream(body)
        finally:
            with script.lock:
                script.num_running -= 1

    def _answer(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, body: dict[str, Any]) -> None:
        script = self.script
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        num_tokens = body.get("max_tokens") or 3
        is_chat = "messages" in body
        choice = {"delta": {"content": "a "}} if is_chat else {"text": "a "}
        events = script.events if is_chat and script.events is not None else None
        if events is None:
            events = [{"choices": [choice]} for _ in range(num_tokens)]
        if is_chat:
            self._send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for event in events:
            time.sleep(script.pause)
            self._send(event)
        if script.sends_usage:
            usage = {"prompt_tokens": 7, "completion_tokens": num_tokens}
            self._send({"choices": [], "usage": usage})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: object) -> None:
        self._write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client has left


@contextmanager
def scripted_server(script: Script, *, is_tls: bool = False) -> Iterator[str]:
    """Yields the server's address."""
    handler = type("Handler", (_Handler,), {"script": script})
    with _Server(("127.0.0.1", 0), handler) as server:
        if is_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "first.crt", TLS / "first.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            scheme = "https" if is_tls else "http"
            yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
