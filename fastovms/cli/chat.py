"""`fastovms chat`: chats with a model in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from fastovms.cli.command import CommandParser, Run, wants_colour
from fastovms.cli.flag import client_settings, flags_of
from fastovms.parts.client.config import TerminalConfig
from fastovms.server_config import Fields, RepositoryConfig
from fastovms.setting import text

TERMINAL: Final = Fields(TerminalConfig)

CHAT_FLAGS: Final = flags_of(TerminalConfig)


def chat(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] [URL | MODEL]"
    parser.description = (
        "Chats in the terminal with any OpenAI-compatible server, or with one that it starts and "
        "ends. Piped input is one message; only its answer is written."
    )
    parser.add_argument(
        "place",
        metavar="URL | MODEL",
        nargs="?",
        type=text,
        help="base URL of a server's API, such as http://127.0.0.1:8000 (/v1 may be left out), or "
        "a model to start a server with, as for serve (default: the built-in demo model)",
    )
    group = parser.add_argument_group("chat")
    for flag in CHAT_FLAGS:
        flag.add_to(group)
    return _run


def _run(arguments: argparse.Namespace) -> int:
    """Runs the chat, and returns the exit code. A missing model is downloaded here, not by the
    server, so that the progress is shown."""
    from fastovms.parts.client import terminal

    given = client_settings(CHAT_FLAGS, arguments, TERMINAL.api_key, os.environ)
    place: str | None = arguments.place
    if place is not None and "://" not in place:
        from fastovms.app.catalog import ModelFinder
        from fastovms.cli.environment import all_settings

        config = all_settings(arguments, os.environ).section(RepositoryConfig)
        ModelFinder.of(config, os.environ).locate(place)
    return terminal.chat(
        place,
        given.section(TerminalConfig),
        in_colour=wants_colour(sys.stdout, os.environ),
    )
