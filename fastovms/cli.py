"""The command line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NoReturn

from fastovms import __version__
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.flags import add_flags, normalize, sections
from fastovms.values import path, text

DEMO_MODEL: Final = Path(__file__).parent / "demo_model"

_FAILURE: Final = 1
_USAGE_ERROR: Final = 2
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run() -> NoReturn:
    """The process's entry."""
    code = main()
    if any(thread.daemon and thread.is_alive() for thread in threading.enumerate()):
        # Left inside native code, where it loads a model or hangs: the interpreter's orderly end
        # would pull the ground from under it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for what the operator can put right, 1 for
    a failure that a restart may cure."""
    arguments = _parser().parse_args(normalize(sys.argv[1:] if argv is None else argv))
    try:
        code = _serve(arguments)
    except ConfigurationError as error:
        code = _complain(error, _USAGE_ERROR)
    except EngineFailed as error:
        code = _complain(error, _FAILURE)
    return code


def _complain(error: Exception, code: int) -> int:
    print(f"fastovms: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here because OpenVINO takes a moment that --help and a wrong flag need not wait.
    from fastovms.app import ServerConfig, serve
    from fastovms.service.log_lines import LineWriter

    config = ServerConfig(
        model_dir=arguments.model_dir,
        model_name=arguments.model_name,
        **sections(arguments),
    )
    with closing(LineWriter()) as log:
        logging.basicConfig(level=config.service.log_level.upper(), format=_LOG_FORMAT, stream=log)
        serve(config, log)
    return 0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fastovms",
        description="OpenAI-compatible LLM server for OpenVINO models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastovms {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser)
    return parser


def _add_serve(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "serve",
        usage="%(prog)s [FLAG ...] [MODEL_DIR]",
        help="serve a model over HTTP",
        description="Serves a model over HTTP, with the APIs of OpenAI and vLLM below /v1 and of "
        "OpenVINO Model Server below /v3.",
        epilog="Sizes may be written as 64K, 16M or 1G. Flags may be written with underscores, as "
        "OpenVINO Model Server has them.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model_dir",
        metavar="MODEL_DIR",
        nargs="?",
        type=path,
        default=DEMO_MODEL,
        help="directory of a model exported by optimum-intel (default: the built-in demo model)",
    )
    parser.add_argument(
        "--model-name",
        metavar="NAME",
        type=text,
        help="name that clients use (default: the directory's)",
    )
    add_flags(parser)
