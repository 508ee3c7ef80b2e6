"""`fastovms cache`: lists or deletes the prompts in the prefix cache on disk."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from fastovms.cli.command import CommandParser, Run
from fastovms.errors import ConfigurationError
from fastovms.setting import path, text


def cache(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.description = (
        "Lists or deletes prompts that are cached on disk. This is safe while a server runs: the "
        "server recomputes missing prompts."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("ls", help="list the cached prompts, by model", allow_abbrev=False)
    clearing = actions.add_parser("clear", help="delete cached prompts", allow_abbrev=False)
    clearing.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="delete only the prompts of this model, as ls names it",
    )
    for subparser in (listing, clearing):
        subparser.add_argument(
            "--prefix-cache-dir",
            dest="directory",
            metavar="DIR",
            type=path,
            help="directory of cached prompts (default: prefix-cache in that of --state-dir)",
        )
    return _run


def _run(arguments: argparse.Namespace) -> None:
    """Lists or deletes cached prompts. Raises ConfigurationError if the directory cannot be read,
    or files cannot be deleted."""
    from fastovms.parts.prefix_cache.directory import FOLDER, delete_blocks, read_contents_by_model
    from fastovms.system.disk import state_directory

    directory: Path = arguments.directory or state_directory(os.environ) / FOLDER
    try:
        if arguments.action == "ls":
            _list(directory)
        else:
            models = {contents.model for contents in read_contents_by_model(directory)}
            if arguments.model is not None and arguments.model not in models:
                raise ConfigurationError(
                    f"{directory} has no prompts of the model {arguments.model}; it has prompts "
                    f"of: "
                    f"{', '.join(sorted(models)) or 'no model'}"
                )
            print(f"{delete_blocks(directory, arguments.model)} blocks deleted")
    except FileNotFoundError:
        raise ConfigurationError(f"there is no directory {directory}") from None
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror}") from None


def _list(directory: Path) -> None:
    from fastovms.parts.prefix_cache.directory import read_contents_by_model

    print(f"{'BLOCKS':>8} {'MiB':>8}  {'LAST USED':19}  MODEL")
    for contents in read_contents_by_model(directory):
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(contents.used_at))
        size = contents.num_bytes / 1024**2
        print(f"{contents.num_blocks:8} {size:8.1f}  {used}  {contents.model}")
