from __future__ import annotations

import asyncio
from io import StringIO
from typing import Any

import uvloop

from fastovms.client.http_client import HttpClient
from fastovms.client.target import Target
from fastovms.terminal.chat_session import ChatSession
from fastovms.terminal.dialogue import Dialogue
from tests.client.scripted_server import Script, scripted_server
from tests.terminal.test_line_input import typed

HELLO = [{"choices": [{"delta": {"content": "Hel"}}]}, {"choices": [{"delta": {"content": "lo"}}]}]
CALL = {"index": 0, "id": "call_1", "function": {"name": "add", "arguments": "{}"}}


def talk(
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
        session.talk(typed(*lines, EOFError))
        runner.run(client.close())
    messages = script.received[-1][1]["messages"] if script.received else []
    return output.getvalue(), errors.getvalue(), messages


def test_answers_are_remembered() -> None:
    output, errors, messages = talk(Script(events=HELLO), "Hi", "", "Again")
    assert output == "Hello\nHello\n\n"
    assert errors == ""
    assert [message["content"] for message in messages] == ["Hi", "Hello", "Again"]


def test_commands() -> None:
    script = Script(events=HELLO)
    output, errors, messages = talk(script, "/system Be brief.", "/dance", "Hi", "/exit", "never")
    assert "system: Be brief." in output
    assert errors == "fastovms: there is no command /dance: see /help\n"
    assert [message["role"] for message in messages] == ["system", "user"]
    assert len(script.received) == 1


def test_a_message_that_fails_is_forgotten() -> None:
    output, errors, messages = talk(Script(events=HELLO, statuses=[500]), "Hi", "Again")
    assert errors == "fastovms: HTTP 500: status 500\n"
    assert output == "Hello\n\n"
    assert [message["content"] for message in messages] == ["Again"]


def test_what_json_lacks_ends_no_chat() -> None:
    script = Script(events=HELLO)
    lines = ("Hi", "/system Be brief.", "/model \udce9", "/model m", "Again")
    output, errors, messages = talk(script, *lines, system="\udce9")
    assert errors == "fastovms: cannot be sent: str is not valid UTF-8: surrogates not allowed\n"
    assert "model: \\udce9\n" in output
    assert [message["content"] for message in messages] == ["Be brief.", "Again"]


def test_an_answer_without_a_word() -> None:
    _, errors, messages = talk(Script(events=[]), "Hi", "Again")
    assert errors == "fastovms: the model has said nothing\n" * 2
    assert [message["content"] for message in messages] == ["Again"]


def test_the_results_of_calls_are_typed() -> None:
    script = Script(events=[{"choices": [{"delta": {"tool_calls": [CALL]}}]}])

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
        session.talk(line)
        runner.run(client.close())
    assert output.getvalue() == "-> add {}\nHello\n\n"
    assert dialogue.messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "3"}
    assert dialogue.messages[3]["content"] == "Hello"
