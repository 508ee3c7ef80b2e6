"""Begins a chat: with a server that runs, or with one that it starts, at a terminal or by pipes."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
from contextlib import ExitStack

import uvloop

from fastovms.client.http_client import HttpClient
from fastovms.client.model_list import first_model
from fastovms.client.target import Target
from fastovms.errors import ConfigurationError
from fastovms.terminal.chat_session import ChatSession
from fastovms.terminal.dialogue import Dialogue
from fastovms.terminal.line_input import terminal_line
from fastovms.terminal.local_server import local_server
from fastovms.terminal.terminal_config import TerminalConfig

_FAILED = 1


def chat(place: str | None, config: TerminalConfig, *, in_colour: bool) -> int:
    """Chats until the user ends it, and returns the exit code. What comes by a pipe is one message,
    whose answer is all that is written.

    Args:
        place: the URL of a server, or a model to start one on; None = the demo model.

    Raises:
        ConfigurationError: it is no URL, or nothing came by the pipe.
        EngineFailed: the server did not start.
        RequestFailed: the server cannot be asked which models it has.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A few bytes of another encoding, as a diff of old files has, do not stand in the way.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    is_typed = sys.stdin.isatty()
    is_terminal = sys.stdout.isatty()
    text = "" if is_typed else sys.stdin.read().strip()
    if not is_typed and not text:
        raise ConfigurationError("there is nothing to say: standard input is empty")
    with ExitStack() as stack:
        key = config.api_key
        if place is not None and "://" in place:
            target = Target.from_url(place)
        else:
            if is_terminal:
                print(f"starting a server of {place or 'the demo model'} ...", file=sys.stderr)
            url, key = stack.enter_context(local_server(place))
            target = Target.from_url(url)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = HttpClient(target, headers=headers, verify=not config.insecure)
        stack.callback(lambda: runner.run(client.close()))
        model = config.model or runner.run(first_model(client))
        session = ChatSession(
            client,
            Dialogue(model, config.system),
            runner,
            sys.stdout,
            sys.stderr,
            is_terminal=is_terminal,
            in_colour=in_colour,
        )
        if not is_typed:
            return 0 if session.answer(text) else _FAILED
        if is_terminal:
            print(f"{model}: /help shows the commands, Ctrl-D ends the chat", file=sys.stderr)
        # While a line is typed, Ctrl-C drops the line.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, before)
        session.talk(terminal_line)
    return 0
