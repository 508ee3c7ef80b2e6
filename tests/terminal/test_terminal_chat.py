"""`fastovms chat` as a process: by pipes, and at a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from tests.client.scripted_server import Script, scripted_server

CHAT = (sys.executable, "-m", "fastovms", "chat")
EVENTS = [
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"delta": {"content": "Hello"}}]},
]


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHAT, *arguments], input=text, capture_output=True, text=True, timeout=60
    )


def test_a_pipe_gets_the_answer_alone() -> None:
    script = Script(events=EVENTS)
    with scripted_server(script) as url:
        done = piped("Hi\nthere\n", url, "--system", "Be brief.", "--api-key", "k")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")
    [(headers, body)] = script.received
    assert headers["Authorization"] == "Bearer k"
    assert body["model"] == "scripted"
    assert [message["content"] for message in body["messages"]] == ["Be brief.", "Hi\nthere"]


def test_bytes_of_another_encoding_are_replaced() -> None:
    script = Script(events=EVENTS)
    with scripted_server(script) as url:
        done = subprocess.run([*CHAT, url], input=b"caf\xe9 \xe4\xb8\xad", capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    [(_, body)] = script.received
    assert body["messages"][-1]["content"] == "caf\ufffd \u4e2d"


def test_a_reader_that_leaves_ends_it_without_a_word() -> None:
    with scripted_server(Script(events=EVENTS)) as url:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run(
                [*CHAT, url], input=b"Hi", stdout=writer, stderr=subprocess.PIPE, timeout=60
            )
        finally:
            os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("text", "statuses", "url", "code", "line"),
    [
        ("Hi", [503], None, 1, "fastovms: HTTP 503: status 503\n"),
        ("", [], None, 2, "fastovms: there is nothing to say: standard input is empty\n"),
        ("Hi", [], "ftp://a", 2, "fastovms: URL must be http://HOST:PORT"),
        ("Hi", [], "http://127.0.0.1:1", 1, "fastovms: no connection: 127.0.0.1:1"),
    ],
)
def test_failures_are_one_line(
    text: str, statuses: list[int], url: str | None, code: int, line: str
) -> None:
    with scripted_server(Script(statuses=statuses)) as there:
        done = piped(text, url or there)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_a_server_of_the_demo_model_is_started() -> None:
    done = piped("What is the capital of France?")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip(), "what it says is drawn at random"


def test_a_terminal() -> None:
    script = Script(events=EVENTS)
    with scripted_server(script) as url:
        ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "NO_COLOR": ""}
        command = [*CHAT, url]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, process_group=0
        ) as process:
            os.close(theirs)
            seen = ""

            def shows(text: str, seconds: float) -> bool:
                nonlocal seen
                while text not in seen and select.select([ours], [], [], seconds)[0]:
                    seen += os.read(ours, 4096).decode()
                _, found, rest = seen.partition(text)
                seen = rest if found else seen
                return bool(found)

            def expect(text: str) -> None:
                assert shows(text, 60), seen

            def interrupt() -> None:
                """Again if need be: Python notices no signal that comes just before it waits for a
                key."""
                for _ in range(10):
                    process.send_signal(signal.SIGINT)
                    if shows(">>> ", 2):
                        return
                raise AssertionError(seen)

            expect("scripted: /help shows the commands")
            expect(">>> ")
            os.write(ours, b"Hi\n")
            expect("\x1b[2mhm\x1b[0m")
            expect("Hello")
            expect(">>> ")
            os.write(ours, b"dropped")
            expect("dropped")
            interrupt()
            script.events, script.pause = [EVENTS[1]] * 1000, 0.02
            os.write(ours, b"More\n")
            expect("HelloHello")
            interrupt()
            script.events, script.pause = EVENTS, 0.0
            os.write(ours, b"Again\n")
            expect(">>> ")
            os.write(ours, b"\x04")
            assert process.wait(20) == 0
        os.close(ours)
    contents = [message["content"] for message in script.received[-1][1]["messages"]]
    stopped = contents.pop(3)
    assert contents == ["Hi", "Hello", "More", "Again"]
    assert stopped.startswith("HelloHello")
    assert len(stopped) < 1000
