"""Declares the flags of `fastovms chat`, and runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final

from fastovms.cli.commands.client_settings import client_settings
from fastovms.cli.commands.doctor_command import wants_colour
from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import text
from fastovms.config.settings import Fields, Settings
from fastovms.terminal.terminal_config import TerminalConfig

TERMINAL: Final = Fields(TerminalConfig)

CHAT_FLAGS: Final = (
    Flag("--model", TERMINAL.model, "NAME", text,
         "what requests ask for (default: the first model that the server lists)",
         shows_default=False),
    Flag("--system", TERMINAL.system, "TEXT", text, "system message", shows_default=False),
    Flag("--api-key", TERMINAL.api_key, "KEY", text,
         "key that the server wants (default: the one in the environment's OPENAI_API_KEY)",
         shows_default=False),
    Flag("--insecure", TERMINAL.insecure, "", None, "accept any certificate"),
)  # fmt: skip


def add_chat(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] [URL | MODEL]",
        help="chat with a model in the terminal",
        description="Chats in the terminal with any OpenAI-compatible server, or with one that it "
        "starts and ends. What comes by a pipe is one message, whose answer is all that is "
        "written.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "place",
        metavar="URL | MODEL",
        nargs="?",
        type=text,
        help="base URL of a server's API, such as http://127.0.0.1:8000 (the same as its /v1), or "
        "a model to start a server on, as serve takes it (default: the built-in demo model)",
    )
    group = parser.add_argument_group("chat")
    for flag in CHAT_FLAGS:
        flag.add_to(group)


def run_chat(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the chat, and returns the exit code."""
    given = client_settings(CHAT_FLAGS, arguments, TERMINAL.api_key, os.environ)
    from fastovms.terminal.terminal_chat import chat

    return chat(
        arguments.place,
        given.section(TerminalConfig),
        in_colour=wants_colour(sys.stdout, os.environ),
    )
