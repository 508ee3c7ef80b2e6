"""`fastovms doctor`: examines the machine, the installation and a model."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial
from typing import Final

from fastovms.app.catalog import ModelFinder
from fastovms.cli.command import CommandParser, Run, wants_colour
from fastovms.cli.environment import all_settings
from fastovms.cli.flags import ENGINE_GROUP, HUB_GROUP, add_flags
from fastovms.cli.foreign_flags import normalize
from fastovms.server_config import MODEL_SECTIONS, ModelSource, RepositoryConfig
from fastovms.setting import text

_GROUPS: Final = (HUB_GROUP, "network", "access", ENGINE_GROUP, "stored responses")
"""The groups of flags whose values are checked."""


def doctor(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] [MODEL]"
    parser.description = (
        "Examines what a server with these flags and this environment would find: the "
        "processor, limits, memory, directories, keys, addresses, and how close the model comes to "
        "the bandwidth of the memory. Nothing is changed. The exit code is 1 if problems are "
        "found."
    )
    parser.normalize = partial(normalize, has_short_names=False)
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory, GGUF file or ORG/NAME of a model (default: the built-in demo model)",
    )
    report = parser.add_argument_group("doctor")
    report.add_argument(
        "--json", action="store_true", help="print the report as JSON instead of text"
    )
    report.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the speed of the memory and of the model, which takes some seconds (default: "
        "yes)",
    )
    add_flags(parser, titles=_GROUPS)
    return _run


def _run(arguments: argparse.Namespace) -> int:
    """Examines and prints, and returns the exit code."""
    settings = all_settings(arguments, os.environ)
    from fastovms.parts.doctor.examination import examine, render, render_json

    logging.basicConfig(level="ERROR", format="%(message)s")
    source = settings.section(ModelSource)
    if arguments.model is not None:
        source = ModelSource(arguments.model)
    source = ModelSource(source.location, source.names, settings.only(*MODEL_SECTIONS))
    finder = ModelFinder.of(settings.section(RepositoryConfig), os.environ)
    examination = examine(source, settings, finder.find_here, runs=arguments.run)
    if arguments.json:
        print(render_json(examination), flush=True)
    else:
        in_colour = wants_colour(sys.stdout, os.environ)
        print(render(examination.findings, in_colour=in_colour), flush=True)
    return int(examination.has_problems)
