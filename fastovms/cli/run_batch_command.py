"""Declares the arguments of `fastovms run-batch`, and runs it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from fastovms.cli.environment import unused_variables
from fastovms.cli.flags.flag_types import path, text
from fastovms.cli.flags.flags import add_flags
from fastovms.cli.flags.unused_flags import add_foreign_flags, unused_flags
from fastovms.cli.model_arguments import add_model_arguments
from fastovms.cli.model_choice import chosen_models
from fastovms.cli.server_choice import server_config
from fastovms.config.service_config import ServiceConfig
from fastovms.config.settings import SERVICE, Settings
from fastovms.errors import ConfigurationError
from fastovms.telemetry.log_format import level_named, log_handler, start_log

logger = logging.getLogger(__name__)


def add_run_batch(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] IN OUT [MODEL]",
        help="answer a file of requests without a server",
        description="Answers the requests of a file, a JSON text a line as OpenAI's batches have "
        "them, and writes the answers to another one, where a run that was cut short goes on. "
        "The flags are those of serve. The exit code is 0 if all lines are answered, 1 if some "
        "have failed, and 2 if the input is wrong, of which nothing runs then.",
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="IN", nargs="?", type=text, help="file of requests")
    parser.add_argument("second", metavar="OUT", nargs="?", type=text, help="file of answers")
    parser.add_argument("-i", "--input-file", metavar="IN", type=path, help="the same as IN")
    parser.add_argument("-o", "--output-file", metavar="OUT", type=path, help="the same as OUT")
    add_model_arguments(parser)
    add_flags(parser)
    add_foreign_flags(parser)


def run_batch(arguments: argparse.Namespace, settings: Settings) -> int:
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
    for line in (*unused_flags(arguments), *unused_variables(os.environ)):
        logger.warning("%s", line)
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
    """Returns the two files, and leaves the model where that of `serve` stands.

    Raises:
        ConfigurationError: a file is not named, or something is too much.
    """
    given = (arguments.input_file, arguments.output_file)
    named = [arguments.first, arguments.second, arguments.model]
    if (given[0] is None) != (given[1] is None):
        raise ConfigurationError("--input-file and --output-file are given together")
    if given[0] is None:
        if arguments.second is None:
            raise ConfigurationError("run-batch needs IN and OUT (see fastovms run-batch --help)")
        return Path(arguments.first), Path(arguments.second)
    arguments.model = arguments.first
    if any(named[1:]):
        raise ConfigurationError("beside --input-file and --output-file there is only MODEL")
    return given
