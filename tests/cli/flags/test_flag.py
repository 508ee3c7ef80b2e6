"""A flag in the help, on a command line, and in the settings."""

from __future__ import annotations

import argparse

import pytest

from fastovms.cli.flags.flag import Flag
from fastovms.cli.flags.flag_types import show_size
from fastovms.config.settings import ENGINE, HTTP, SECURITY, Settings

PORT = Flag("--p", HTTP.port, "N", int, "100% a port")
CACHING = Flag("--caching", ENGINE.enable_prefix_caching, "", None, "caches")
KEYS = Flag("--key", SECURITY.api_keys, "K", str, "a key", repeats=True, shows_default=False)
MEMBER = Flag("--kv", ENGINE.plugin_config, "T", str, "type", member="KV", shows_default=False)


def parser(*flags: Flag) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    for flag in flags:
        flag.add_to(made.add_argument_group("g"))
    return made


@pytest.mark.parametrize(
    ("flag", "line", "settings"),
    [
        (PORT, "", {}),
        (PORT, "--p 5", {HTTP.port: 5}),
        (CACHING, "--caching", {ENGINE.enable_prefix_caching: True}),
        (CACHING, "--no-caching", {ENGINE.enable_prefix_caching: False}),
        (KEYS, "--key a --key b", {SECURITY.api_keys: ("a", "b")}),
        (MEMBER, "--kv u8", {ENGINE.plugin_config: {"KV": "u8"}}),
    ],
)
def test_what_it_sets(flag, line, settings) -> None:
    assert flag.settings_of(parser(flag).parse_args(line.split())) == Settings(settings)


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        (PORT, "8000"),
        (CACHING, "yes"),
        (KEYS, ""),
        (
            Flag("--m", HTTP.max_body, "N", int, "", show=show_size),
            show_size(HTTP.max_body.default),
        ),
        (Flag("--d", ENGINE.draft_model, "D", str, ""), ""),
    ],
)
def test_its_default_in_words(flag, shown) -> None:
    assert flag.shown_default == shown


def test_a_percent_sign_in_the_help() -> None:
    assert "100% a port (default: 8000)" in parser(PORT).format_help()
