"""What pages of other sites can do to a server without a key, tried by a real browser.

    python -m bench.security.browser [--browser chromium] [--record] [-- FLAGS OF fastovms serve]

A page on another port of this machine, then the same page of another site, tries forms, fetches,
beacons and embedded elements; then a page whose own name leads to the server, once it is loaded,
asks as if it were the server's own (DNS rebinding). For each attempt the table has what the server
answered, by its access log, and whether the page could read it. The exit code is 1 if anything was
carried out or read.

With --record the attempts go to a listener that prints the heads of the requests as they came.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from bench.common.process import free_port
from bench.common.report import table

_PAGE = Path(__file__).with_name("attacks.html")
_PATIENCE = 120.0
"""Seconds for all attempts of a page."""
_SETTLING = 0.3
"""Seconds after an attempt until its line is in the access log."""
_FOREIGN_NAME = "evil.example"

POSITIONS = ("another port", "another site", "rebound")
"""Where the page stands as the browser sees it. The last one is the server's own to it."""

# No window, nothing asked of the network but what the page asks for.
_BROWSER_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-breakpad", "--disable-crash-reporter",
    f"--host-resolver-rules=MAP {_FOREIGN_NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


class Site(ThreadingHTTPServer):
    """A site of the attacker's: its page, and where that page reports to."""

    daemon_threads = True

    def __init__(self, port: int, on_report: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(("127.0.0.1", port), _SiteHandler)
        self.on_report = on_report
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _SiteHandler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        page = self.path.startswith("/page")
        self._answer(200 if page else 404, _PAGE.read_bytes() if page else b"")

    def do_POST(self) -> None:
        report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.on_report(report)
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Target:
    """The server under attack; its access log tells what it answered."""

    def __init__(self, directory: Path, flags: Sequence[str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "access.log"
        self._command = [
            *(sys.executable, "-m", "fastovms", "serve", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--state-dir", ":memory:"),
            *("--access-log-file", str(self._log), "--access-log", "json", *flags),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with urlopen(f"{self.url}/ready", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the server does not start") from None
                time.sleep(0.1)

    def answers(self) -> list[str]:
        """What was answered until now: "POST 200" and the like."""
        time.sleep(_SETTLING)
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        told = [json.loads(line) for line in lines]
        return [f"{one['method']} {one['status']}" for one in told if one["path"] != "/favicon.ico"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)


class Recorder:
    """Stands in for the server, and prints the heads that come."""

    def __init__(self) -> None:
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _RecorderHandler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answers(self) -> list[str]:
        return []

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _RecorderHandler(socketserver.StreamRequestHandler):
    """Lets every preflight pass, so that what comes after it is seen too."""

    def handle(self) -> None:
        head = []
        while (line := self.rfile.readline().decode("latin-1").rstrip()) != "":
            head.append(line)
        if head:
            print("\n".join(head), end="\n\n", flush=True)
        fields = ("Origin: *", "Methods: *", "Headers: *")
        lines = [f"Access-Control-Allow-{field}" for field in fields]
        answer = ["HTTP/1.1 200 OK", "Content-Length: 0", "Connection: close", *lines, "", ""]
        self.wfile.write("\r\n".join(answer).encode())


class Reports:
    """Turns a page's reports into rows of the table."""

    def __init__(self, target: Target | Recorder, on_loaded: Callable[[], None]) -> None:
        self._target = target
        self._on_loaded = on_loaded
        self._before = 0
        self.rows: list[tuple[str, str, str]] = []
        self.is_safe = True
        self.over = threading.Event()

    def __call__(self, report: dict[str, Any]) -> None:
        if "loaded" in report:
            self._on_loaded()
        elif "begin" in report:
            if isinstance(self._target, Recorder):
                print(f"--- {report['begin']}")
            self._before = len(self._target.answers())
        elif "end" in report:
            answers = self._target.answers()[self._before :]
            was_read = bool(report["read"])
            carried_out = any(answer.split()[1].startswith("2") for answer in answers)
            self.is_safe &= not carried_out and not was_read
            was_told = "yes" if was_read else "no"
            self.rows.append((report["end"], ", ".join(answers) or "-", was_told))
        else:
            self.over.set()


@contextmanager
def _browser(program: str, url: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_BROWSER_FLAGS, f"--user-data-dir={profile}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def attack(program: str, target: Target | Recorder, position: str) -> Reports:
    """Lets a page make its attempts.

    Args:
        position: one of `POSITIONS`.

    Raises:
        SystemExit: it did not come to its end in time.
    """
    with ExitStack() as stack:
        stack.callback(target.stop)
        if position == "rebound":
            # At first the name leads to the attacker's site on the port of the server, which then
            # makes place for it.
            first = Site(target.port, lambda report: None)

            def on_loaded() -> None:
                first.close()
                target.start()

        else:
            target.start()

            def on_loaded() -> None:
                raise AssertionError

        reports = Reports(target, on_loaded)
        site = Site(0, reports)
        stack.callback(site.close)
        host = "127.0.0.1" if position == "another port" else _FOREIGN_NAME
        own = f"http://{host}:{site.server_port}"
        query = {"report": f"{own}/report"}
        if position == "rebound":
            url = f"http://{host}:{target.port}/page?{urlencode(query)}&rebound"
        else:
            url = f"{own}/page?{urlencode({**query, 'target': target.url})}"
        with _browser(program, url):
            if not reports.over.wait(_PATIENCE):
                raise SystemExit(f"the page did not finish: {reports.rows}")
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", default="chromium", help="program to start")
    parser.add_argument("--record", action="store_true", help="print the requests' heads")
    parser.add_argument("flags", nargs="*", help="of fastovms serve, behind --")
    arguments = parser.parse_args()
    program = shutil.which(arguments.browser)
    if program is None:
        raise SystemExit(f"{arguments.browser} is missing: apt-get install chromium")
    if arguments.record:
        for position in POSITIONS[:-1]:
            print(f"--- {position}")
            attack(program, Recorder(), position)
        return 0
    rows: list[tuple[str, ...]] = []
    is_safe = True
    for position in POSITIONS:
        with tempfile.TemporaryDirectory() as directory:
            target = Target(Path(directory), arguments.flags)
            reports = attack(program, target, position)
            rows += [(position, *row) for row in reports.rows]
            is_safe &= reports.is_safe
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    print(version.stdout.strip())
    print(table(("page", "attempt", "answered", "read by the page"), rows))
    print("nothing was carried out or read" if is_safe else "something was carried out or read")
    return 0 if is_safe else 1


if __name__ == "__main__":
    sys.exit(main())
