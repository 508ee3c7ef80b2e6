"""`fastovms tune`: measures the fastest settings of a model on this machine, for `serve`."""

from __future__ import annotations

import argparse
import logging
import os
from functools import partial

from fastovms.cli.command import CommandParser, Run
from fastovms.cli.environment import all_settings
from fastovms.cli.flags import ENGINE_GROUP, HUB_GROUP, add_flags
from fastovms.cli.foreign_flags import normalize
from fastovms.server_config import MODEL_SECTIONS, ModelSource, RepositoryConfig
from fastovms.setting import text


def tune(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] MODEL"
    parser.description = (
        "Measures with which precisions, and with how many tokens a step, a model runs "
        "fastest on this machine, prints a table and stores the result for serve. Without this "
        "command, serve measures while it is idle."
    )
    parser.normalize = partial(normalize, has_short_names=False)
    parser.add_argument(
        "model", metavar="MODEL", type=text, help="directory, GGUF file or ORG/NAME of a model"
    )
    add_flags(parser, titles=[HUB_GROUP, ENGINE_GROUP])
    return _run


def _run(arguments: argparse.Namespace) -> None:
    settings = all_settings(arguments, os.environ)
    from fastovms.cli.tuning_report import measure

    logging.basicConfig(level="WARNING", format="%(message)s")
    source = ModelSource(arguments.model, settings=settings.only(*MODEL_SECTIONS))
    print(measure(source, settings.section(RepositoryConfig)), flush=True)
