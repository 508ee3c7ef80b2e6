"""Tests of `fastovms/parts/client/terminal.py`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fastovms.errors import EngineFailed
from fastovms.parts.client.http_client import HttpClient, Target
from fastovms.parts.client.terminal import (
    AnswerPrinter,
    ChatSession,
    Dialogue,
    InvalidInput,
    Message,
    local_server,
    read_text,
    run_command,
    visible,
)
from tests.client.scripted_server import Script, scripted_server


@pytest.mark.nightly
def test_local_server_needs_its_key_and_ends_with_the_block() -> None:
    with local_server(None) as (url, key):
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"demo_model" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(f"{url}/v1/models", timeout=60)
        refused.value.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(request, timeout=60)


@pytest.mark.nightly
def test_failed_start_of_a_local_server_has_the_reason() -> None:
    with (
        pytest.raises(EngineFailed, match="model directory no/such/place does not exist"),
        local_server("no/such/place"),
    ):
        pass


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    left: Iterator[str | type[BaseException]] = iter(lines)

    def read(prompt: str) -> str:
        line = next(left)
        if isinstance(line, str):
            return line
        raise line

    return read


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("  Hi ",), "Hi"),
        (('"""one',' two', 'three"""'), "one\n two\nthree"),
        (('"""one"""',), "one"),
        (('"""', "one", '"""'), "one"),
        ((EOFError,), None),
        (('"""one', EOFError), None),
        ((KeyboardInterrupt,), ""),
        (('"""one', KeyboardInterrupt), ""),
    ],
)  # fmt: skip
def test_typed_lines_are_joined_within_triple_quotes(
    lines: tuple[str | type[BaseException], ...], text: str | None
) -> None:
    assert read_text(typed(*lines), "> ") == text


@pytest.fixture
def dialogue() -> Dialogue:
    dialogue = Dialogue("m")
    dialogue.messages.append({"role": "user", "content": "Hi"})
    return dialogue


def test_commands_change_system_message_options_and_model(dialogue: Dialogue) -> None:
    assert run_command(dialogue, "/system Be brief.") == "system: Be brief."
    assert dialogue.system == "Be brief."
    assert run_command(dialogue, "/system") == "there is no system message"
    assert "server's default" in run_command(dialogue, "/set")
    assert run_command(dialogue, "/set top_k 5") == "top_k = 5"
    assert run_command(dialogue, "/model n") == "model: n"
    assert run_command(dialogue, "/model") == "model: n"
    assert run_command(dialogue, "/clear") == "all messages are forgotten"
    assert dialogue.messages == []


def test_dialogue_and_tools_are_loaded_from_files(dialogue: Dialogue, tmp_path: Path) -> None:
    kept, tools = tmp_path / "chat.json", tmp_path / "tools.json"
    dialogue.system = "Grüße"
    dialogue.set_option("seed", str(2**64 - 1))
    assert run_command(dialogue, f"/save {kept}") == f"saved in {kept}"
    other = Dialogue("m")
    assert run_command(other, f"/load {kept}") == "1 messages"
    assert other.body() == dialogue.body()
    tools.write_text('[{"type": "function"}]')
    assert run_command(dialogue, f"/tools {tools}") == "1 tools"
    assert dialogue.tools == [{"type": "function"}]
    assert run_command(dialogue, "/tools") == "0 tools"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/dance", "unknown command /dance: see /help"),
        ("/", "unknown command /: see /help"),
        ("/save", "the command needs the name of a file"),
        ("/save {0}", "cannot write {0}: Is a directory"),
        ("/load {0}/none", "cannot read {0}/none: No such file"),
        ("/load {0}/bytes", "cannot read {0}/bytes: it is not UTF-8"),
        ("/tools {0}/object", "must have a JSON list"),
        ("/tools {0}/half", "must have a JSON list"),
        ("/save ~nosuchuser/x", "cannot expand ~nosuchuser/x: the home directory is unknown"),
        ("/load ~nosuchuser/x", "cannot expand ~nosuchuser/x: the home directory is unknown"),
        ("/save {0}/\0", "cannot write .*: embedded null byte"),
        ("/load {0}/\0", "cannot read .*: embedded null byte"),
        ("/load ~a\0b", "the home directory is unknown"),
        ("/set heat 1", "is not an option"),
    ],
)
def test_invalid_input_is_refused(
    dialogue: Dialogue, tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "object").write_text("{}")
    (tmp_path / "half").write_text('["\\ud800"]')
    before = dialogue.to_json()
    with pytest.raises(InvalidInput, match=words.format(tmp_path)):
        run_command(dialogue, line.format(tmp_path))
    assert dialogue.to_json() == before


def test_chat_with_surrogates_is_not_saved(dialogue: Dialogue, tmp_path: Path) -> None:
    dialogue.system = "\udce9"  # as a byte of Latin-1 on the command line becomes
    kept = tmp_path / "chat.json"
    kept.write_text("before")
    with pytest.raises(InvalidInput, match=r"cannot write .*surrogates not allowed"):
        run_command(dialogue, f"/save {kept}")
    assert kept.read_text() == "before"


def test_body_has_messages_tools_and_options_of_the_dialogue() -> None:
    dialogue = Dialogue("m", "Be brief.")
    dialogue.messages.append({"role": "user", "content": "Hi"})
    dialogue.set_option("temperature", "0.5")
    dialogue.set_option("max_tokens", "9")
    dialogue.tools = [{"type": "function"}]
    assert dialogue.body() == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ],
        "stream": True,
        "tools": [{"type": "function"}],
        "temperature": 0.5,
        "max_tokens": 9,
    }
    dialogue.set_option("temperature", "")
    assert "temperature" not in dialogue.body()
    assert Dialogue("m").body() == {"model": "m", "messages": [], "stream": True}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("heat", "1", "'heat' is not an option; options are temperature, top_p"),
        ("temperature", "hot", "temperature must be a finite number, not 'hot'"),
        ("temperature", "nan", "temperature must be a finite number, not 'nan'"),
        ("top_p", "-inf", "top_p must be a finite number, not '-inf'"),
        ("seed", "1.5", "seed must be an integer of 64 bits, not '1.5'"),
        ("seed", str(2**64), "seed must be an integer of 64 bits, not '18446744073709551616'"),
        ("top_k", str(-(2**63) - 1), "top_k must be an integer of 64 bits"),
    ],
)
def test_invalid_option_is_refused_with_its_reason(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Dialogue("m").set_option(name, value)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"system": 5, "tools": [], "options": {}, "messages": []}',
        '{"system": null, "tools": [], "options": {}, "messages": ["a"]}',
        '{"system": "\\ud800", "tools": [], "options": {}, "messages": []}',
        '{"system": null, "tools": [], "options": {"top_p": NaN}, "messages": []}',
        "[" * 100_000,
    ],
)
def test_text_that_is_no_saved_chat_is_refused(text: str) -> None:
    dialogue = Dialogue("m", "Be brief.")
    with pytest.raises(InvalidInput, match="not a chat saved"):
        dialogue.restore(text)
    assert dialogue.system == "Be brief."


CALL = {"index": 0, "id": "call_7", "function": {"name": "add", "arguments": ""}}


def printed(
    *deltas: dict[str, Any], is_terminal: bool = True, in_colour: bool = True
) -> tuple[str, Message | None]:
    output = StringIO()
    printer = AnswerPrinter(output, is_terminal=is_terminal, in_colour=in_colour)
    for delta in deltas:
        printer.on_event(json.dumps({"choices": [{"delta": delta}]}).encode(), 0.0)
    printer.on_event(b"[DONE]", 0.0)
    message = printer.finish()
    return output.getvalue(), message


CALL_DELTAS: tuple[dict[str, Any], ...] = (
    {"content": "Let me see."},
    {"tool_calls": [CALL]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    {"tool_calls": [{"index": 1, "function": {"name": "now", "arguments": "{}"}}]},
)
THOUGHTS = ({"reasoning_content": "hm"}, {"reasoning": "m"}, {"content": "Yes."})


@pytest.mark.parametrize(
    ("deltas", "how", "output"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}], {},
         "Hello\n"),
        ([{"content": "a line\n"}], {}, "a line\n"),
        ([], {}, ""),
        (THOUGHTS, {}, "\x1b[2mhmm\x1b[0m\n\nYes.\n"),
        (THOUGHTS, {"in_colour": False}, "hmm\n\nYes.\n"),
        (THOUGHTS, {"is_terminal": False, "in_colour": False}, "Yes.\n"),
        (CALL_DELTAS, {}, 'Let me see.\n-> add {"a":1}\n-> now {}\n'),
        ([{"content": "\x1b[2J"}], {}, "\\x1b[2J\n"),
    ],
    ids=["content", "a line", "nothing", "thoughts", "no colour", "a pipe", "calls", "control"],
)  # fmt: skip
def test_answer_printer_shows_text_thoughts_and_calls(
    deltas: list[dict[str, Any]], how: dict[str, bool], output: str
) -> None:
    assert printed(*deltas, **how)[0] == output


def test_answer_printer_returns_the_message_without_thoughts() -> None:
    assert printed()[1] is None
    assert printed(*THOUGHTS)[1] == {"role": "assistant", "content": "Yes."}
    message = printed(*CALL_DELTAS)[1]
    assert message is not None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "add", "arguments": '{"a":1}'},
        {"name": "now", "arguments": "{}"},
    ]
    assert message["tool_calls"][0]["id"] == "call_7"


def test_visible_text_has_its_control_characters_escaped() -> None:
    text = "a\tb\nc \u00fc \U0001f469\u200d\U0001f4bb"
    assert visible(text) == text
    assert visible("\x1b]0;x\x07\r\x9b1m\u202e") == "\\x1b]0;x\\x07\\x0d\\x9b1m\\u202e"


HELLO = [{"choices": [{"delta": {"content": "Hel"}}]}, {"choices": [{"delta": {"content": "lo"}}]}]
CHAT_SESSION_CALL = {"index": 0, "id": "call_1", "function": {"name": "add", "arguments": "{}"}}


def run_chat(
    script: Script, *lines: str, system: str | None = None
) -> tuple[str, str, list[dict[str, Any]]]:
    """Returns what was printed, what was complained of, and the messages of the last request."""
    output, errors = StringIO(), StringIO()
    with (
        scripted_server(script) as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        client = HttpClient(Target.from_url(url))
        session = ChatSession(
            client, Dialogue("m", system), runner, output, errors, is_terminal=True, in_colour=False
        )
        session.run_chat(typed(*lines, EOFError))
        runner.run(client.close())
    messages = script.received[-1][1]["messages"] if script.received else []
    return output.getvalue(), errors.getvalue(), messages


def test_answers_are_remembered() -> None:
    output, errors, messages = run_chat(Script(events=HELLO), "Hi", "", "Again")
    assert output == "Hello\nHello\n\n"
    assert errors == ""
    assert [message["content"] for message in messages] == ["Hi", "Hello", "Again"]


def test_command_lines_are_run_without_a_request() -> None:
    script = Script(events=HELLO)
    output, errors, messages = run_chat(
        script, "/system Be brief.", "/dance", "Hi", "/exit", "never"
    )
    assert "system: Be brief." in output
    assert errors == "fastovms: unknown command /dance: see /help\n"
    assert [message["role"] for message in messages] == ["system", "user"]
    assert len(script.received) == 1


def test_a_message_that_fails_is_forgotten() -> None:
    output, errors, messages = run_chat(Script(events=HELLO, statuses=[500]), "Hi", "Again")
    assert errors == "fastovms: HTTP 500: status 500\n"
    assert output == "Hello\n\n"
    assert [message["content"] for message in messages] == ["Again"]


def test_input_that_json_cannot_hold_does_not_end_the_chat() -> None:
    script = Script(events=HELLO)
    lines = ("Hi", "/system Be brief.", "/model \udce9", "/model m", "Again")
    output, errors, messages = run_chat(script, *lines, system="\udce9")
    assert errors == "fastovms: cannot be sent: str is not valid UTF-8: surrogates not allowed\n"
    assert "model: \\udce9\n" in output
    assert [message["content"] for message in messages] == ["Be brief.", "Again"]


def test_empty_answer_is_reported_and_forgotten() -> None:
    _, errors, messages = run_chat(Script(events=[]), "Hi", "Again")
    assert errors == "fastovms: the answer is empty\n" * 2
    assert [message["content"] for message in messages] == ["Again"]


def test_typed_result_of_a_call_is_sent_back() -> None:
    script = Script(events=[{"choices": [{"delta": {"tool_calls": [CHAT_SESSION_CALL]}}]}])

    def line(prompt: str) -> str:
        if prompt.startswith("result of add"):
            script.events = HELLO
            return "3"
        if script.received:
            raise EOFError
        return "How much?"

    output, errors = StringIO(), StringIO()
    with (
        scripted_server(script) as url,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        client = HttpClient(Target.from_url(url))
        dialogue = Dialogue("m")
        session = ChatSession(
            client, dialogue, runner, output, errors, is_terminal=True, in_colour=False
        )
        session.run_chat(line)
        runner.run(client.close())
    assert output.getvalue() == "-> add {}\nHello\n\n"
    assert dialogue.messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    assert dialogue.messages[3]["content"] == "Hello"


# `fastovms chat` as a process: by pipes, and at a terminal.


CHAT = (sys.executable, "-m", "fastovms", "chat")
EVENTS = [
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"delta": {"content": "Hello"}}]},
]


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHAT, *arguments], input=text, capture_output=True, text=True, timeout=60
    )


def test_piped_chat_prints_only_the_answer() -> None:
    script = Script(events=EVENTS)
    with scripted_server(script) as url:
        done = piped("Hi\nthere\n", url, "--system", "Be brief.", "--api-key", "k")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")
    [(headers, body)] = script.received
    assert headers["Authorization"] == "Bearer k"
    assert body["model"] == "scripted"
    assert [message["content"] for message in body["messages"]] == ["Be brief.", "Hi\nthere"]


def test_closed_output_ends_the_chat_silently() -> None:
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


@pytest.mark.nightly(but=("statuses0",))
@pytest.mark.parametrize(
    ("text", "statuses", "url", "code", "line"),
    [
        ("Hi", [503], None, 1, "fastovms: HTTP 503: status 503\n"),
        ("", [], None, 2, "fastovms: standard input is empty\n"),
        ("Hi", [], "ftp://a", 2, "fastovms: URL must be http://HOST:PORT"),
        ("Hi", [], "http://127.0.0.1:1", 1, "fastovms: no connection: 127.0.0.1:1"),
    ],
)
def test_failed_chat_prints_one_line(
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


def test_interrupt_in_a_terminal_stops_input_or_answer() -> None:
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
            assert process.wait(60) == 0
        os.close(ours)
    contents = [message["content"] for message in script.received[-1][1]["messages"]]
    stopped = contents.pop(3)
    assert contents == ["Hi", "Hello", "More", "Again"]
    assert stopped.startswith("HelloHello")
    assert len(stopped) < 1000
