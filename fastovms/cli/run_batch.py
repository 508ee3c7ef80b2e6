"""`fastovms run-batch`: answers a batch file without a server."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from fastovms.cli.command import CommandParser, Run
from fastovms.cli.environment import all_settings
from fastovms.cli.foreign_flags import normalize, unused_flags
from fastovms.cli.serve import add_serving_arguments, chosen_models, server_config
from fastovms.errors import ConfigurationError
from fastovms.server_config import SERVICE, ServiceConfig, Settings
from fastovms.setting import path, text
from fastovms.telemetry.log_format import level_named, log_handler, start_log

logger = logging.getLogger(__name__)


def run_batch(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] IN OUT [MODEL]"
    parser.description = (
        "Answers the requests of a file, which has one JSON object a line as OpenAI's "
        "batches have, and writes the answers to a second file. An interrupted run is resumed. The "
        "flags are those of serve. The exit code is 0 if all lines are answered, 1 if some have "
        "failed, and 2 if the input is wrong and nothing was run."
    )
    parser.normalize = normalize
    parser.add_argument("first", metavar="IN", nargs="?", type=text, help="file of requests")
    parser.add_argument("second", metavar="OUT", nargs="?", type=text, help="file of answers")
    parser.add_argument(
        "-i", "--input-file", metavar="IN", type=path, help="file of requests, like IN"
    )
    parser.add_argument(
        "-o", "--output-file", metavar="OUT", type=path, help="file of answers, like OUT"
    )
    add_serving_arguments(parser, shows_all=parser.shows_all)
    return lambda arguments: run(arguments, all_settings(arguments, os.environ))


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Runs the batch, and returns the exit code."""
    paths = _take_paths(arguments)
    models, settings = chosen_models(arguments, settings)
    if not models:
        raise ConfigurationError(f"{arguments.config_path} lists no model to run the batch on")
    if SERVICE.log_level not in settings.given:
        settings = settings | Settings.of(ServiceConfig, log_level="warning")
    service = settings.section(ServiceConfig)
    handler = log_handler(logging.StreamHandler(sys.stderr), service.log_format)
    start_log(handler, level_named(service.log_level))
    for line in (*unused_flags(arguments), *arguments.unused):
        logger.warning("settings: %s", line)
    config = server_config(models, settings)
    from fastovms.app import batch_app
    from fastovms.app.serve import api_context, model_supply

    parts = batch_app.OfflineParts(
        model_supply(config),
        lambda models, bodies: api_context(config, models, bodies, None),
        config.batches,
        service.engine_timeout,
    )
    return batch_app.run_batch(batch_app.BatchPaths(*paths), parts)


def _take_paths(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Returns the input and output file, and leaves the model among the arguments as for `serve`.
    Raises ConfigurationError if a file is missing, or there are too many arguments."""
    given = (arguments.input_file, arguments.output_file)
    named = [arguments.first, arguments.second, arguments.model]
    if (given[0] is None) != (given[1] is None):
        raise ConfigurationError("--input-file and --output-file must be given together")
    if given[0] is None:
        if arguments.second is None:
            raise ConfigurationError("run-batch needs IN and OUT (see fastovms run-batch --help)")
        return Path(arguments.first), Path(arguments.second)
    arguments.model = arguments.first
    if any(named[1:]):
        raise ConfigurationError("with --input-file and --output-file only MODEL may be given")
    return given
