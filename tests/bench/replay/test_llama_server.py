"""Sessions are played on a server that answers as llama-server does, and their times are added."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.replay.llama_server import WITHOUT, LlamaServer, Played, measure, rows_of
from bench.replay.session import Session, Turn

SERVER = '''#!{python}
"""Says what it is told, half of it drafted, and notes what it is asked for."""
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
kept = Path(arguments["--slot-save-path"])
held = None

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        global held
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Path("{log}").open("a") as log:
            print(self.path, file=log)
        if self.path.endswith("save"):
            (kept / body["filename"]).write_text(json.dumps(held))
            return self.answer({{}})
        if self.path.endswith("restore"):
            held = json.loads((kept / body["filename"]).read_text())
            return self.answer({{}})
        num_computed = 1 if held == body["prompt"] else len(body["prompt"])
        held = body["prompt"]
        tokens = [int(t) for t in Path(os.environ["LLAMA_FORCED_TOKENS"]).read_text().split()]
        self.answer({{
            "tokens": {said},
            "timings": {{
                "prompt_n": num_computed, "prompt_ms": 100.0, "predicted_ms": 900.0,
                "predicted_n": len(tokens), "draft_n": len(tokens),
                "draft_n_accepted": len(tokens) // 2,
            }},
        }})

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

HTTPServer(("127.0.0.1", int(arguments["--port"])), Handler).serve_forever()
'''
SESSION = Session((Turn((1, 2, 3), (4, 5)), Turn((1, 2, 3, 4, 5, 6), (7, 8, 9, 10))))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def running(tmp_path: Path, log: Path, said: str) -> Iterator[LlamaServer]:
    program = tmp_path / "server"
    program.write_text(SERVER.format(python=sys.executable, log=log, said=said))
    program.chmod(0o755)
    directory = tmp_path / "said"
    directory.mkdir()
    states = tmp_path / "states"
    with LlamaServer.running(program, tmp_path / "a.gguf", "", directory, states) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, log: Path) -> Iterator[LlamaServer]:
    yield from running(tmp_path, log, "tokens")


@pytest.fixture
def server_that_errs(tmp_path: Path, log: Path) -> Iterator[LlamaServer]:
    yield from running(tmp_path, log, "tokens[1:]")


def test_prompts_are_computed_once(server: LlamaServer, log: Path) -> None:
    played = server.play(SESSION)
    assert played == Played(2.0, 6, 6, 3)
    assert played.tokens_per_second == 3.0
    restored = ["/slots/0?action=restore", "/completion"]
    computed = ["/completion", "/slots/0?action=save", *restored]
    assert log.read_text().split() == computed * 2
    server.play(SESSION)
    assert log.read_text().split() == computed * 2 + restored * 2


def test_another_text_is_an_error(server_that_errs: LlamaServer) -> None:
    with pytest.raises(RuntimeError, match="another text was said"):
        server_that_errs.play(SESSION)


def test_time_with_a_prompt_is_an_error() -> None:
    timings = {"prompt_n": 7, "prompt_ms": 1.0, "predicted_ms": 1.0, "predicted_n": 1}
    with pytest.raises(RuntimeError, match="7 tokens of a kept prompt"):
        Played.of(timings)


def test_the_first_session_is_left_out(server: LlamaServer, log: Path) -> None:
    played = measure({WITHOUT: server, "cache": server}, [SESSION, SESSION, SESSION])
    assert log.read_text().split().count("/slots/0?action=restore") == 2 * 3 * len(SESSION.turns)
    assert [len(rounds) for rounds in played.values()] == [2, 2]
    rows = rows_of("edits", played)
    assert [row[1] for row in rows] == [WITHOUT, "cache"]
    assert rows[1][3:] == ["1.00 (1.00 to 1.00)", "50%", "50%"]


def test_rows_begin_without_drafts_and_go_on_with_the_fastest() -> None:
    speeds = {"slow": 2.0, WITHOUT: 1.0, "fast": 0.5}
    rows = rows_of("chats", {name: [Played(s, 10)] for name, s in speeds.items()})
    assert [row[1] for row in rows] == [WITHOUT, "fast", "slow"]
    assert rows[1][3] == "2.00 (2.00 to 2.00)"
