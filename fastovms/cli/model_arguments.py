"""Declares the arguments of a command line that say which models it is about."""

from __future__ import annotations

import argparse

from fastovms.cli.flags.flag_types import path, text


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all that `model_choice` reads."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory of a model exported by optimum-intel or of a graph.pbtxt, a GGUF file, or "
        "ORG/NAME or ORG/NAME/FILE.gguf of a model on a hub, which is pulled unless it is there "
        "(default: the built-in demo model)",
    )
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model",
        metavar="[NAME=]MODEL",
        dest="models",
        action="append",
        type=text,
        default=[],
        help="the same, and the name that clients use; may be given several times, to serve "
        "several models",
    )
    models.add_argument(
        "--model-name",
        metavar="NAME",
        dest="names",
        nargs=1,
        type=text,
        default=[],
        help="name that clients use for the only model (default: the directory's, or ORG/NAME)",
    )
    models.add_argument(
        "--served-model-name",
        metavar="NAME",
        dest="names",
        nargs="+",
        type=text,
        default=[],
        help="the same, or several names, of which answers carry the first",
    )
    models.add_argument(
        "--config-path",
        metavar="FILE",
        type=path,
        help="serve the models of a config.json of OpenVINO Model Server",
    )
    # Other words of OVMS.
    parser.add_argument("--model-path", type=path, help=argparse.SUPPRESS)
    parser.add_argument("--source-model", type=text, help=argparse.SUPPRESS)
    parser.add_argument("--gguf-filename", type=text, help=argparse.SUPPRESS)
