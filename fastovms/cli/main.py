"""Runs the command that a command line asks for, and ends with its exit code: the entry point of
`fastovms`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from fastovms import __version__
from fastovms.catalog.hub import Repository, is_model_id, model_root
from fastovms.cli.commands.bench_command import run_bench
from fastovms.cli.commands.cache_command import run_cache
from fastovms.cli.commands.chat_command import run_chat
from fastovms.cli.commands.config_edit import add_model, list_models, remove_model
from fastovms.cli.commands.configure import HELD_FLAGS, write_graph
from fastovms.cli.commands.doctor_command import run_doctor
from fastovms.cli.commands.state_command import run_state
from fastovms.cli.environment import extra_arguments, read_environment, unused_variables
from fastovms.cli.flags.aliases import BENCH, CACHE, CHAT, DOCTOR, PULL, RUN_BATCH, STATE, TUNE
from fastovms.cli.flags.flags import FLAGS, read_flags
from fastovms.cli.flags.unused_flags import unused_flags
from fastovms.cli.model_choice import chosen_models, source_model
from fastovms.cli.parser import USAGE_ERROR, parse
from fastovms.cli.run_batch_command import run_batch
from fastovms.cli.server_choice import server_config
from fastovms.client.request_failed import RequestFailed
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.service_config import ServiceConfig
from fastovms.config.settings import (
    ENCODER,
    ENGINE,
    MODEL_SECTIONS,
    ConfigField,
    ModelSource,
    Settings,
)
from fastovms.errors import ConfigurationError, EngineFailed, StateFailed
from fastovms.ovms.config_list import config_file
from fastovms.service.log_writer import LineWriter
from fastovms.telemetry.log_format import level_named, log_handler, start_log

__all__ = ["main", "run"]

_FAILURE: Final = 1
_OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
"""As shells have it of a program that nobody reads from."""

logger = logging.getLogger(__name__)


def run() -> NoReturn:
    """Runs the process, and ends it with the command's exit code."""
    _open_standard_streams()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    code = main()
    if any(thread is not threading.main_thread() for thread in threading.enumerate()):
        # A thread may still be in native code, loading a model or hanging: an orderly end of the
        # interpreter would free what that code uses. A thread of a pool may wait for a disk that
        # does not answer, and the interpreter would wait for that thread.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_standard_streams() -> None:
    """Opens the standard streams that are missing: some start a process without them, their
    descriptors would go to sockets, and libuv takes that for a mistake."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest one that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


class _Stopped(SystemExit):
    """Says that a signal came while there was no server yet to shut down."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number  # as shells have it
        super().__init__(self.exit_code)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise _Stopped(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for what the operator can put right, 1 for
    a failure that a restart may cure."""
    environ = os.environ
    command: Command | None = None
    try:
        extra = extra_arguments(environ)
        arguments = parse(sys.argv[1:] if argv is None else argv, extra)
        settings = read_environment(environ) | read_flags(arguments)
        command = _command(arguments)
        code = command(arguments, settings) or 0
        sys.stdout.flush()
        return code
    except _Stopped as stopped:
        # A server ends so in order; any other command is left undone.
        return 0 if command is _serve else stopped.exit_code
    except ConfigurationError as error:
        return _complain(error, USAGE_ERROR)
    except (EngineFailed, RequestFailed, StateFailed) as error:
        return _complain(error, _FAILURE)
    except BrokenPipeError:
        # Whoever reads the output has left, as head does: the rest of it, which the interpreter
        # writes at its end, goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OUTPUT_CLOSED


def _complain(error: Exception, code: int) -> int:
    print(f"fastovms: {' '.join(str(error).split())}", file=sys.stderr)
    return code


Command = Callable[[argparse.Namespace, Settings], int | None]
"""Runs a command, given the arguments and all settings. It returns the exit code; None = 0."""


def _command(arguments: argparse.Namespace) -> Command:
    """Returns what to do: OVMS has flags for what are commands here."""
    commands: dict[str, Command] = {
        PULL: _pull,
        TUNE: _tune,
        RUN_BATCH: run_batch,
        BENCH: run_bench,
        DOCTOR: run_doctor,
        CHAT: run_chat,
        STATE: run_state,
        CACHE: run_cache,
    }
    if arguments.command in commands:
        return commands[arguments.command]
    if arguments.pull:
        return _pull_for_ovms
    if arguments.list_models:
        return _list_models
    if arguments.configure:
        return _configure
    if arguments.add_to_config is not None:
        return _add_to_config
    if arguments.remove_from_config is not None:
        return _remove_from_config
    return _serve


def _serve(arguments: argparse.Namespace, settings: Settings) -> None:
    given, listed = settings, arguments.config_path
    models, settings = chosen_models(arguments, given)
    service = settings.section(ServiceConfig)
    with closing(LineWriter(service.log_file)) as log:
        handler = log_handler(logging.StreamHandler(log), service.log_format)
        start_log(handler, level_named(service.log_level))
        for line in (*unused_flags(arguments), *unused_variables(os.environ)):
            logger.warning("%s", line)
        logger.info("fastovms %s starts", __version__)
        # Imported here because OpenVINO takes some seconds, for which --help and a wrong flag need
        # not wait, nor the first line of the log.
        from fastovms.app.serve import serve

        read_models = listed and (lambda: chosen_models(arguments, given)[0])
        serve(server_config(models, settings, listed and config_file(listed), read_models), log)


def _pull(arguments: argparse.Namespace, settings: Settings) -> None:
    _pull_models(arguments.model_ids, settings)


def _pull_for_ovms(arguments: argparse.Namespace, settings: Settings) -> None:
    """Pulls the model, and its draft model if there is one."""
    if arguments.source_model is None:
        raise ConfigurationError("--pull needs --source-model")
    logging.basicConfig(level="INFO", format="%(message)s")
    _warn_of_left_out(
        arguments,
        "--pull fetches files: give it to the server, or to --configure",
        ENGINE.draft_model,
    )
    draft = settings.section(EngineConfig).draft_model
    drafts = [] if draft is None or draft.exists() else [str(draft)]
    _pull_models([source_model(arguments), *drafts], settings)


def _pull_models(model_ids: Sequence[str], settings: Settings) -> None:
    """Pulls models, and prints where each is."""
    for model_id in model_ids:
        if not is_model_id(model_id):
            raise ConfigurationError(f"a model of a hub is ORG/NAME, not {model_id!r}")
    logging.basicConfig(level="INFO", format="%(message)s")
    config = settings.section(RepositoryConfig)
    repository = Repository(model_root(config.path, os.environ))
    for model_id in model_ids:
        path = repository.pull(model_id, revision=config.revision, overwrite=config.overwrite)
        print(path, flush=True)


def _tune(arguments: argparse.Namespace, settings: Settings) -> None:
    from fastovms.cli.commands.tune import tune

    logging.basicConfig(level="WARNING", format="%(message)s")
    source = ModelSource(arguments.model, settings=settings.only(*MODEL_SECTIONS))
    print(tune(source, settings.section(RepositoryConfig)), flush=True)


def _list_models(arguments: argparse.Namespace, settings: Settings) -> None:
    for name in list_models(model_root(settings.section(RepositoryConfig).path, os.environ)):
        print(name)


def _configure(arguments: argparse.Namespace, settings: Settings) -> None:
    """Writes a graph, and prints where it is. The environment is left to the server that reads
    it."""
    logging.basicConfig(level="WARNING", format="%(message)s")
    graph = write_graph(arguments)
    for line in unused_flags(arguments, used=HELD_FLAGS):
        logger.warning("%s", line)
    print(graph)


def _add_to_config(arguments: argparse.Namespace, settings: Settings) -> None:
    name = _only_name(arguments, "--add-to-config")
    root = settings.section(RepositoryConfig).path
    if arguments.model_path is None and root is None:
        raise ConfigurationError("--add-to-config needs --model-path or --model-repository-path")
    config = _edited_list(arguments, "--add-to-config", arguments.add_to_config)
    logging.basicConfig(level="WARNING", format="%(message)s")
    _warn_of_left_out(
        arguments, "a list has names and places: --configure writes options into a model's graph"
    )
    add_model(config, name, arguments.model_path or Path(root or "", name))


def _warn_of_left_out(arguments: argparse.Namespace, reason: str, *used: ConfigField) -> None:
    """Warns of flags about a model that a command passes over. The task, which OVMS wants with
    them, follows from the model's files."""
    given = read_flags(arguments).only(*MODEL_SECTIONS).given
    for flag in FLAGS:
        if flag.field in given and flag.field not in (*used, ENCODER.task):
            logger.warning("%s is not used: %s", flag.name, reason)


def _remove_from_config(arguments: argparse.Namespace, settings: Settings) -> None:
    flag = "--remove-from-config"
    name = _only_name(arguments, flag)
    remove_model(_edited_list(arguments, flag, arguments.remove_from_config), name)


def _edited_list(arguments: argparse.Namespace, flag: str, given: Path | bool) -> Path:
    """Returns the list of models that the flag or --config-path names, or both. `given` is the
    flag's path, or True where it stands alone."""
    beside: Path | None = arguments.config_path
    if isinstance(given, bool):
        if beside is None:
            raise ConfigurationError(f"{flag} needs --config-path")
        return beside
    if beside is not None and _real(given) != _real(beside):
        raise ConfigurationError(
            f"{flag} {given} cannot be used with --config-path {beside}: these are two lists"
        )
    return given


def _real(config: Path) -> str:
    return os.path.realpath(config_file(config))


def _only_name(arguments: argparse.Namespace, flag: str) -> str:
    if len(arguments.names) != 1:
        raise ConfigurationError(f"{flag} needs --model-name")
    name: str = arguments.names[0]
    return name
