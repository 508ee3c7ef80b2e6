"""Declares the flags of `fastovms doctor`, and runs it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final, TextIO

from fastovms.cli.flags.flag_types import text
from fastovms.cli.flags.flags import ENGINE_GROUP, HUB_GROUP, add_flags
from fastovms.config.settings import MODEL_SECTIONS, ModelSource, Settings

_GROUPS: Final = (HUB_GROUP, "network", "access", ENGINE_GROUP, "stored responses")
"""The groups of flags whose values are looked at."""


def add_doctor(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] [MODEL]",
        help="examine the machine, the installation and a model",
        description="Examines what a server with these flags and this environment would find: the "
        "processor, limits, memory, directories, keys, addresses, and how near the model comes to "
        "what the memory gives. Nothing is changed. The exit code is 1 where there are problems.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory, GGUF file or ORG/NAME, as of serve (default: the built-in demo model)",
    )
    report = parser.add_argument_group("doctor")
    report.add_argument("--json", action="store_true", help="print JSON in place of the text")
    report.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the memory and the model, which takes some seconds (default: yes)",
    )
    add_flags(parser, titles=_GROUPS)


def run_doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    """Examines and prints, and returns the exit code."""
    from fastovms.doctor.examination import examine, render, render_json

    logging.basicConfig(level="ERROR", format="%(message)s")
    source = settings.section(ModelSource)
    if arguments.model is not None:
        source = ModelSource(arguments.model)
    source = ModelSource(source.location, source.names, settings.only(*MODEL_SECTIONS))
    examination = examine(source, settings, runs=arguments.run)
    if arguments.json:
        print(render_json(examination), flush=True)
    else:
        in_colour = wants_colour(sys.stdout, os.environ)
        print(render(examination.findings, in_colour=in_colour), flush=True)
    return int(examination.has_problems)


def wants_colour(output: TextIO, environ: Mapping[str, str]) -> bool:
    """Returns whether to write in colours: on a terminal that has them, unless NO_COLOR
    (https://no-color.org) is set."""
    return output.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
