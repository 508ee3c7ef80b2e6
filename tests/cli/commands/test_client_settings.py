from __future__ import annotations

import argparse

import pytest

from fastovms.cli.commands.chat_command import CHAT_FLAGS, TERMINAL
from fastovms.cli.commands.client_settings import client_settings
from fastovms.terminal.terminal_config import TerminalConfig


@pytest.mark.parametrize(
    ("line", "environ", "key"),
    [
        ([], {}, None),
        ([], {"OPENAI_API_KEY": " "}, None),
        ([], {"OPENAI_API_KEY": " a\n"}, "a"),
        (["--api-key", "b"], {"OPENAI_API_KEY": "a"}, "b"),
    ],
)
def test_the_key(line, environ, key):
    parser = argparse.ArgumentParser()
    for flag in CHAT_FLAGS:
        flag.add_to(parser)
    given = client_settings(CHAT_FLAGS, parser.parse_args(line), TERMINAL.api_key, environ)
    assert given.section(TerminalConfig).api_key == key
