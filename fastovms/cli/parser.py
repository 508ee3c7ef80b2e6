"""Declares the commands and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from fastovms import __version__
from fastovms.cli.commands.bench_command import add_bench
from fastovms.cli.commands.cache_command import add_cache
from fastovms.cli.commands.chat_command import add_chat
from fastovms.cli.commands.doctor_command import add_doctor
from fastovms.cli.commands.state_command import add_state
from fastovms.cli.flags.aliases import (
    BENCH,
    CACHE,
    CHAT,
    DOCTOR,
    MODES,
    PULL,
    RUN_BATCH,
    SERVE,
    STATE,
    TUNE,
    normalize,
)
from fastovms.cli.flags.flag_types import path, text
from fastovms.cli.flags.flags import ENGINE_GROUP, HUB_GROUP, add_flags
from fastovms.cli.flags.unused_flags import add_foreign_flags
from fastovms.cli.model_arguments import add_model_arguments
from fastovms.cli.run_batch_command import add_run_batch

USAGE_ERROR: Final = 2


def parse(argv: Sequence[str], extra: Sequence[str] = ()) -> argparse.Namespace:
    """Parses a command line, and ends the process when the line is wrong, or asks for help only.

    Args:
        extra: arguments of `serve` that those of the line go before.
    """
    line = normalize(argv)
    if line[:1] == [SERVE]:
        line[1:1] = normalize([SERVE, *extra])[1:]
    return command_parser().parse_args(line)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def command_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; manual pages and completions are made of it, too."""
    parser = _Parser(
        prog="fastovms",
        description="OpenAI-compatible LLM server for OpenVINO models. A line without a command is "
        "one of serve.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastovms {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    _add_serve(commands.add_parser)
    _add_pull(commands.add_parser)
    _add_tune(commands.add_parser)
    add_run_batch(commands.add_parser, RUN_BATCH)
    add_bench(commands.add_parser, BENCH)
    add_doctor(commands.add_parser, DOCTOR)
    add_state(commands.add_parser, STATE)
    add_cache(commands.add_parser, CACHE)
    add_chat(commands.add_parser, CHAT)
    return parser


def _add_pull(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        PULL,
        usage="%(prog)s [FLAG ...] ORG/NAME ...",
        help="download models of a hub, so that they can be served without a network",
        description="Downloads models in OpenVINO's format from a Hugging Face hub. A pull that "
        "was cut short goes on where it was. HF_TOKEN, HF_ENDPOINT and the other variables of "
        "huggingface_hub are heeded.",
        allow_abbrev=False,
    )
    parser.add_argument("model_ids", metavar="ORG/NAME", nargs="+", help="id of a model")
    add_flags(parser, titles=[HUB_GROUP])


def _add_tune(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        TUNE,
        usage="%(prog)s [FLAG ...] MODEL",
        help="measure how a model runs fastest on this machine",
        description="Measures in which precisions, and with how many tokens a step, a model runs "
        "fastest on this machine, prints a table and keeps the result for serve, which else "
        "measures when it is idle.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", type=text, help="directory, GGUF file or ORG/NAME, as of serve"
    )
    add_flags(parser, titles=[HUB_GROUP, ENGINE_GROUP])


def _add_serve(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        SERVE,
        usage="%(prog)s [FLAG ...] [MODEL]",
        help="serve models over HTTP",
        description="Serves models over HTTP, with the APIs of OpenAI and vLLM below /v1 and of "
        "OpenVINO Model Server below /v3.",
        epilog="Sizes may be written as 64K, 16M or 1G. Flags of OpenVINO Model Server, with "
        "underscores, and of vLLM are understood or overlooked with a warning; those that would "
        "change answers, and that it does not have, are refused.",
        allow_abbrev=False,
    )
    add_model_arguments(parser)
    _add_ovms_modes(parser)
    add_flags(parser)
    add_foreign_flags(parser)


def _add_ovms_modes(parser: argparse.ArgumentParser) -> None:
    """Adds what OVMS's command line does beside serving."""
    hidden = argparse.SUPPRESS
    switch = argparse.BooleanOptionalAction
    for mode in MODES:
        parser.add_argument(mode, action=switch, default=False, help=hidden)
    for edit in ("--add-to-config", "--remove-from-config"):
        # With the list's path, as it was in older versions, or beside --config-path.
        parser.add_argument(edit, type=path, nargs="?", const=True, help=hidden)
