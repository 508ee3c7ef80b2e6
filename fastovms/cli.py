"""The command line."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from fastovms import __version__
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.flags import add_flags, given, normalize, sections
from fastovms.hub import Repository, default_root, is_model_id
from fastovms.sources import ModelSource, parse_model, with_names
from fastovms.values import text

DEMO_MODEL: Final = Path(__file__).parent / "demo_model"

_FAILURE: Final = 1
_USAGE_ERROR: Final = 2
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run() -> NoReturn:
    """The process's entry."""
    _open_standard_streams()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    code = main()
    if any(thread.daemon and thread.is_alive() for thread in threading.enumerate()):
        # Left inside native code, where it loads a model or hangs: the interpreter's orderly end
        # would pull the ground from under it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Some start a process without them. Their descriptors would go to sockets, which libuv takes
    for a mistake."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest one that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """For signals that come before there is anything to shut down."""
    sys.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for what the operator can put right, 1 for
    a failure that a restart may cure."""
    arguments = _parser().parse_args(normalize(sys.argv[1:] if argv is None else argv))
    try:
        code: int = arguments.run(arguments)
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

    config = ServerConfig(tuple(_sources(arguments)), **sections(arguments))
    with closing(LineWriter()) as log:
        logging.basicConfig(level=config.service.log_level.upper(), format=_LOG_FORMAT, stream=log)
        serve(config, log)
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    """Prints where each model is."""
    config = sections(arguments)["repository"]
    for model_id in arguments.model_ids:
        if not is_model_id(model_id):
            raise ConfigurationError(f"a model of a hub is ORG/NAME, not {model_id!r}")
    logging.basicConfig(level="INFO", format="%(message)s")
    repository = Repository(config.path or default_root(os.environ))
    for model_id in arguments.model_ids:
        path = repository.pull(model_id, revision=config.revision, overwrite=config.overwrite)
        print(path, flush=True)
    return 0


def _sources(arguments: argparse.Namespace) -> list[ModelSource]:
    """The models that the operator names; none = the demo model."""
    named = [parse_model(text) for text in arguments.models]
    if arguments.model is not None:
        if named:
            raise ConfigurationError("MODEL cannot be used with --model")
        named = [ModelSource(arguments.model)]
    sources = with_names(named or [ModelSource(str(DEMO_MODEL))], arguments.names)
    engine, chat = given(arguments, "engine"), given(arguments, "chat")
    return [replace(source, engine=engine, chat=chat) for source in sources]


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
    _add_pull(commands.add_parser)
    return parser


def _add_pull(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "pull",
        usage="%(prog)s [FLAG ...] ORG/NAME ...",
        help="download models of a hub, so that they can be served without a network",
        description="Downloads models in OpenVINO's format from a Hugging Face hub. A pull that "
        "was cut short goes on where it was. HF_TOKEN, HF_ENDPOINT and the other variables of "
        "huggingface_hub are heeded.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_pull)
    parser.add_argument("model_ids", metavar="ORG/NAME", nargs="+", help="id of a model")
    add_flags(parser, titles=["models of a hub"])


def _add_serve(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "serve",
        usage="%(prog)s [FLAG ...] [MODEL]",
        help="serve models over HTTP",
        description="Serves models over HTTP, with the APIs of OpenAI and vLLM below /v1 and of "
        "OpenVINO Model Server below /v3.",
        epilog="Sizes may be written as 64K, 16M or 1G. Flags may be written with underscores, as "
        "OpenVINO Model Server has them.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_serve)
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory of a model exported by optimum-intel, a GGUF file, or ORG/NAME of a model "
        "on a hub, which is pulled unless it is there (default: the built-in demo model)",
    )
    parser.add_argument(
        "--model",
        metavar="[NAME=]MODEL",
        dest="models",
        action="append",
        type=text,
        default=[],
        help="the same, and the name that clients use; may be given several times, to serve "
        "several models",
    )
    parser.add_argument(
        "--model-name",
        metavar="NAME",
        dest="names",
        nargs=1,
        type=text,
        default=[],
        help="name that clients use for the only model (default: the directory's, or ORG/NAME)",
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        dest="names",
        nargs="+",
        type=text,
        default=[],
        help="the same, or several names, of which answers carry the first",
    )
    add_flags(parser)
