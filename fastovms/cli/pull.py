"""`fastovms pull`: downloads models."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial

from fastovms.app.catalog import is_model_id, model_root
from fastovms.cli.command import CommandParser, Run
from fastovms.cli.environment import all_settings
from fastovms.cli.flags import HUB_GROUP, add_flags
from fastovms.cli.foreign_flags import normalize
from fastovms.errors import ConfigurationError
from fastovms.server_config import RepositoryConfig


def pull(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] ORG/NAME ..."
    parser.description = (
        "Downloads models in OpenVINO's format from a Hugging Face hub. An interrupted "
        "download is resumed. HF_TOKEN, HF_ENDPOINT and the other environment variables of "
        "huggingface_hub apply."
    )
    parser.normalize = partial(normalize, has_short_names=False)
    parser.add_argument("model_ids", metavar="ORG/NAME", nargs="+", help="id of a model")
    add_flags(parser, titles=[HUB_GROUP])
    return lambda arguments: pull_models(
        arguments.model_ids, all_settings(arguments, os.environ).section(RepositoryConfig)
    )


def pull_models(model_ids: Sequence[str], config: RepositoryConfig) -> None:
    """Downloads models and prints their paths."""
    for model_id in model_ids:
        if not is_model_id(model_id):
            raise ConfigurationError(f"a model of a hub is ORG/NAME, not {model_id!r}")
    from fastovms.parts.hub import Repository

    logging.basicConfig(level="INFO", format="%(message)s")
    repository = Repository(model_root(config.path, os.environ))
    for model_id in model_ids:
        path = repository.pull(model_id, revision=config.revision, overwrite=config.overwrite)
        print(path, flush=True)
