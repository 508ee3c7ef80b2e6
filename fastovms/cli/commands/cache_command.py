"""Runs `fastovms cache`, which shows and erases what is kept on disk of prompts: `ls`, `clear`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from fastovms.cli.flags.flag_types import path, text
from fastovms.config.settings import Settings
from fastovms.errors import ConfigurationError
from fastovms.prefix_cache.contents import erase, read_contents_by_model
from fastovms.prefix_cache.directory_choice import FOLDER
from fastovms.state.sqlite.location import default_directory


def add_cache(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    """Adds the command to the parser."""
    parser = add_parser(
        name,
        help="show or erase the prompts that servers keep computed on disk",
        description="Works on a directory that a server may use meanwhile. It computes what it "
        "does not find.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("ls", help="list what is kept, by model", allow_abbrev=False)
    clearing = actions.add_parser("clear", help="erase it", allow_abbrev=False)
    clearing.add_argument(
        "model", metavar="MODEL", nargs="?", type=text, help="only of this model, as ls names it"
    )
    for subparser in (listing, clearing):
        subparser.add_argument(
            "--prefix-cache-dir",
            dest="directory",
            metavar="DIR",
            type=path,
            help="as of serve (default: prefix-cache in the directory of stored responses)",
        )


def run_cache(arguments: argparse.Namespace, settings: Settings) -> None:
    """Runs the command.

    Raises:
        ConfigurationError: the directory cannot be read, or nothing in it be erased.
    """
    directory: Path = arguments.directory or default_directory(os.environ) / FOLDER
    try:
        if arguments.action == "ls":
            _list(directory)
        else:
            models = {contents.model for contents in read_contents_by_model(directory)}
            if arguments.model is not None and arguments.model not in models:
                raise ConfigurationError(
                    f"{directory} has no prompts of a model {arguments.model}; it has those of: "
                    f"{', '.join(sorted(models)) or 'no model'}"
                )
            print(f"{erase(directory, arguments.model)} blocks erased")
    except FileNotFoundError:
        raise ConfigurationError(f"there is no directory {directory}") from None
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror}") from None


def _list(directory: Path) -> None:
    print(f"{'BLOCKS':>8} {'MB':>8}  {'LAST USED':19}  MODEL")
    for contents in read_contents_by_model(directory):
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(contents.used_at))
        size = contents.num_bytes / 1024**2
        print(f"{contents.num_blocks:8} {size:8.1f}  {used}  {contents.model}")
