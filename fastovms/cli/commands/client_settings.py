"""Reads the settings of commands that ask a server, whose key may be in the environment."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from fastovms.cli.flags.flag import Flag, settings_of
from fastovms.config.settings import ConfigField, Settings


def client_settings(
    flags: Iterable[Flag],
    arguments: argparse.Namespace,
    key: ConfigField,
    environ: Mapping[str, str],
) -> Settings:
    """Returns what the flags set, and the environment's OPENAI_API_KEY where they set no key."""
    given = settings_of(flags, arguments)
    value = environ.get("OPENAI_API_KEY", "").strip()
    if value and key not in given.given:
        given |= Settings({key: value})
    return given
