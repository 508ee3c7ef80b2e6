"""The command line: parses it and runs the command."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fastovms import __version__
from fastovms.app.catalog import (
    ModelFinder,
    Repository,
    is_model_id,
    model_root,
    parse_model,
    with_names,
)
from fastovms.cli.commands import (
    HELD_FLAGS,
    add_cache,
    add_doctor,
    add_model,
    list_models,
    remove_model,
    run_cache,
    run_doctor,
    write_graph,
)
from fastovms.cli.environment import (
    CONFIG_FILE,
    extra_arguments,
    names_of_set,
    read_config_file,
    read_environment,
)
from fastovms.cli.flags import (
    COMMON_GROUP,
    ENGINE_GROUP,
    FLAGS,
    GROUPS,
    HUB_GROUP,
    add_flags,
    read_flags,
)
from fastovms.cli.foreign_flags import (
    BENCH,
    CACHE,
    CHAT,
    COMMANDS,
    DOCTOR,
    MODES,
    PULL,
    RUN_BATCH,
    SERVE,
    STATE,
    TUNE,
    add_foreign_flags,
    check_first_word,
    explain_unknown,
    mapped_flags,
    normalize,
    unused_flags,
)
from fastovms.cli.server_commands import (
    add_bench,
    add_chat,
    add_state,
    run_bench,
    run_chat,
    run_state,
)
from fastovms.config import ApiConfig, EngineConfig, HttpConfig
from fastovms.errors import ConfigurationError, EngineFailed, StateFailed
from fastovms.extensions import COMMANDS as COMMAND_GROUP
from fastovms.extensions import Extension, faults_named, load_extensions
from fastovms.parts.client.http_client import RequestFailed
from fastovms.parts.ovms.config_list import config_file, read_config_list
from fastovms.server_config import (
    ENCODER,
    ENGINE,
    MODEL_SECTIONS,
    SERVICE,
    SOURCE,
    BatchConfig,
    ConfigField,
    FilesConfig,
    MediaConfig,
    ModelSource,
    PrefixCacheConfig,
    RepositoryConfig,
    ResidencyConfig,
    SecurityConfig,
    ServiceConfig,
    Settings,
    StateConfig,
)
from fastovms.service.log_writer import LineWriter
from fastovms.setting import path, text
from fastovms.system.memory import share_heap
from fastovms.telemetry.log_format import level_named, log_handler, start_log

if TYPE_CHECKING:
    from fastovms.app.compiling import CompileAhead
    from fastovms.app.serve import ServerConfig
    from fastovms.app.supply import ReadList
    from fastovms.http.listeners import BoundSockets

logger = logging.getLogger(__name__)


def add_serving_arguments(parser: argparse.ArgumentParser, *, shows_all: bool) -> None:
    """Adds the model, all flags of serve and those of other servers. `shows_all` says whether the
    help shows all flags or only those that are used most."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory of a model exported by optimum-intel, directory with a graph.pbtxt, GGUF "
        "file, or ORG/NAME or ORG/NAME/FILE.gguf of a model on a hub, which is downloaded once "
        "(default: the built-in demo model)",
    )
    parser.add_argument("--help-all", action="help", help="show the help of every flag and exit")
    common = parser.add_argument_group(COMMON_GROUP)
    common.add_argument(
        "--model",
        metavar="[NAME=]MODEL",
        dest="models",
        action="append",
        type=text,
        default=[],
        help="model to serve, like MODEL, and the name that clients use for it; may be given "
        "several times, to serve several models",
    )
    common.add_argument(
        "--served-model-name",
        metavar="NAME",
        dest="names",
        nargs="+",
        type=text,
        default=[],
        help="names that clients use for the only model; responses contain the first one (default: "
        "the name of the model's directory, or ORG/NAME)",
    )
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model-name",
        metavar="NAME",
        dest="names",
        nargs=1,
        type=text,
        default=[],
        help="name that clients use for the only model" if shows_all else argparse.SUPPRESS,
    )
    models.add_argument(
        "--config-path",
        metavar="FILE",
        type=path,
        help="config.json of OpenVINO Model Server with the models to serve"
        if shows_all
        else argparse.SUPPRESS,
    )
    add_flags(parser, common=common, shows_all=shows_all)
    add_foreign_flags(parser)
    if not shows_all:
        hidden = f"More flags are in --help-all: models, {', '.join(GROUPS)}."
        parser.epilog = f"{hidden} {parser.epilog or ''}"
    # Other words of OVMS.
    parser.add_argument("--model-path", type=path, help=argparse.SUPPRESS)
    parser.add_argument("--source-model", type=text, help=argparse.SUPPRESS)
    parser.add_argument("--gguf-filename", type=text, help=argparse.SUPPRESS)


def chosen_models(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[list[ModelSource], Settings]:
    """Returns the models and all settings; settings of the model list have the lowest priority.
    Raises ConfigurationError if flags contradict each other, or the list of models is invalid."""
    sources, of_list = _sources(arguments, settings)
    for_all = settings.only(*MODEL_SECTIONS)
    models = [replace(source, settings=source.settings | for_all) for source in sources]
    return models, of_list | settings


def source_model(arguments: argparse.Namespace) -> str:
    """Returns the model id given by OVMS's flags. Raises ConfigurationError if the id is missing or
    malformed."""
    model_id: str = arguments.source_model
    if not is_model_id(model_id):
        raise ConfigurationError(
            f"--source-model must be ORG/NAME, not {model_id!r}: name a GGUF file of it with "
            "--gguf-filename"
        )
    return model_id if arguments.gguf_filename is None else f"{model_id}/{arguments.gguf_filename}"


def _sources(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[list[ModelSource], Settings]:
    """Returns the models and the server settings of the model list."""
    root = settings.section(RepositoryConfig).path
    ways = {
        "MODEL": arguments.model,
        "--model": arguments.models or None,
        "--model-path": arguments.model_path,
        "--source-model": arguments.source_model,
        "--config-path": arguments.config_path,
    }
    taken = [name for name, value in ways.items() if value is not None]
    if len(taken) > 1:
        raise ConfigurationError(f"{taken[0]} cannot be used with {taken[1]}")
    of_list = Settings()
    match taken:
        case ["MODEL"]:
            sources = [ModelSource(arguments.model)]
        case ["--model"]:
            sources = [parse_model(text) for text in arguments.models]
        case ["--model-path"]:
            sources = [ModelSource(_in_repository(arguments.model_path, root))]
        case ["--source-model"]:
            sources = [ModelSource(source_model(arguments))]
        case ["--config-path"]:
            sources, of_list = read_config_list(arguments.config_path)
        case _:
            sources = [_unnamed(arguments, settings, root)]
    if arguments.names:
        return with_names(sources, arguments.names), of_list
    if len(sources) == 1 and not sources[0].names:
        sources = with_names(sources, settings.section(ModelSource).names)
    return sources, of_list


def _unnamed(arguments: argparse.Namespace, settings: Settings, root: Path | None) -> ModelSource:
    """Returns the model to serve if the flags name none: the environment's, or one of the
    repository by name, as OVMS does, or the demo model."""
    if SOURCE.location not in settings.given and root is not None and arguments.names:
        return ModelSource(str(root / arguments.names[0]))
    return settings.section(ModelSource)


def _in_repository(location: Path, root: Path | None) -> str:
    """Returns the path of a model, which may be relative to the repository."""
    if root is not None and not location.exists() and (root / location).exists():
        return str(root / location)
    return str(location)


def server_config(
    models: Sequence[ModelSource],
    settings: Settings,
    model_list: Path | None = None,
    read_models: ReadList | None = None,
) -> ServerConfig:
    """Returns the configuration. The first call takes some seconds, because OpenVINO is
    imported."""
    from fastovms.app.serve import ServerConfig

    return ServerConfig(
        tuple(models),
        repository=settings.section(RepositoryConfig),
        http=settings.section(HttpConfig),
        api=settings.section(ApiConfig),
        security=settings.section(SecurityConfig),
        service=settings.section(ServiceConfig),
        state=settings.section(StateConfig),
        media=settings.section(MediaConfig),
        prefix_cache=settings.section(PrefixCacheConfig),
        residency=settings.section(ResidencyConfig),
        files=settings.section(FilesConfig),
        batches=settings.section(BatchConfig),
        model_list=model_list,
        read_models=read_models,
    )


def _add_run_batch(add_parser: Callable[..., argparse.ArgumentParser], *, shows_all: bool) -> None:
    parser = add_parser(
        RUN_BATCH,
        usage="%(prog)s [FLAG ...] IN OUT [MODEL]",
        help="answer a file of requests without a server",
        description="Answers the requests of a file, which has one JSON object a line as OpenAI's "
        "batches have, and writes the answers to a second file. An interrupted run is resumed. The "
        "flags are those of serve. The exit code is 0 if all lines are answered, 1 if some have "
        "failed, and 2 if the input is wrong and nothing was run.",
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="IN", nargs="?", type=text, help="file of requests")
    parser.add_argument("second", metavar="OUT", nargs="?", type=text, help="file of answers")
    parser.add_argument(
        "-i", "--input-file", metavar="IN", type=path, help="file of requests, like IN"
    )
    parser.add_argument(
        "-o", "--output-file", metavar="OUT", type=path, help="file of answers, like OUT"
    )
    add_serving_arguments(parser, shows_all=shows_all)


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
    for line in (*unused_flags(arguments), *arguments.unused):
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
    """Returns the input and output file of `batch`, and leaves the model among the arguments as for
    `serve`. Raises ConfigurationError if a file is missing, or there are too many arguments."""
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


USAGE_ERROR: Final = 2


def parse(argv: Sequence[str], extra: Sequence[str] = ()) -> argparse.Namespace:
    """Parses a command line. Ends the process if the line is invalid or asks for help.

    Args:
        extra: arguments of `serve` that the command line overrides.
    """
    line = normalize(argv)
    if line[:1] == [SERVE]:
        line[1:1] = normalize([SERVE, *extra])[1:]
    return command_parser(shows_all="--help-all" in line).parse_args(line)


class _Parser(argparse.ArgumentParser):
    """Prints errors in one line, without the usage, and names the flag that may be meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(explain_unknown(unknown, self._option_string_actions))
        return arguments, unknown

    def error(self, message: str) -> NoReturn:
        help_flag = "--help-all" if "--help-all" in self._option_string_actions else "--help"
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} {help_flag})\n")


def command_parser(*, shows_all: bool = True) -> argparse.ArgumentParser:
    """Returns the parser of all commands. Manual pages and completions are generated from it.
    `shows_all` says whether the help of serve shows all flags or only those that are used most."""
    parser = _Parser(
        prog="fastovms",
        description="OpenAI-compatible LLM server for OpenVINO models. Without a command, serve is "
        "assumed.",
        epilog="fastovms COMMAND --help shows the flags of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastovms {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    _add_serve(commands.add_parser, shows_all=shows_all)
    _add_pull(commands.add_parser)
    _add_tune(commands.add_parser)
    _add_run_batch(commands.add_parser, shows_all=shows_all)
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
        description="Downloads models in OpenVINO's format from a Hugging Face hub. An interrupted "
        "download is resumed. HF_TOKEN, HF_ENDPOINT and the other environment variables of "
        "huggingface_hub apply.",
        allow_abbrev=False,
    )
    parser.add_argument("model_ids", metavar="ORG/NAME", nargs="+", help="id of a model")
    add_flags(parser, titles=[HUB_GROUP])


def _add_tune(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        TUNE,
        usage="%(prog)s [FLAG ...] MODEL",
        help="measure how a model runs fastest on this machine",
        description="Measures with which precisions, and with how many tokens a step, a model runs "
        "fastest on this machine, prints a table and stores the result for serve. Without this "
        "command, serve measures while it is idle.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", type=text, help="directory, GGUF file or ORG/NAME of a model"
    )
    add_flags(parser, titles=[HUB_GROUP, ENGINE_GROUP])


def _add_serve(add_parser: Callable[..., argparse.ArgumentParser], *, shows_all: bool) -> None:
    parser = add_parser(
        SERVE,
        usage="%(prog)s [FLAG ...] [MODEL]",
        help="serve models over HTTP",
        description="Serves models over HTTP, with the APIs of OpenAI and vLLM below /v1 and of "
        "OpenVINO Model Server below /v3.",
        epilog="Sizes may be written as 64K, 16M or 1G, times as 90s, 15m, 2h or 30d, and large "
        "numbers as 8k (8000) or 8K (8192). Flags of OpenVINO Model Server and vLLM are accepted: "
        "those without an equivalent are ignored with a warning, or refused if they would change "
        "answers.",
        allow_abbrev=False,
    )
    _add_ovms_modes(parser)
    add_serving_arguments(parser, shows_all=shows_all)


def _add_ovms_modes(parser: argparse.ArgumentParser) -> None:
    """Adds the modes of OVMS's command line other than serving."""
    hidden = argparse.SUPPRESS
    switch = argparse.BooleanOptionalAction
    for mode in MODES:
        parser.add_argument(mode, action=switch, default=False, help=hidden)
    for edit in ("--add-to-config", "--remove-from-config"):
        # With the list's path, as it was in older versions, or beside --config-path.
        parser.add_argument(edit, type=path, nargs="?", const=True, help=hidden)


__all__ = ["main", "run"]

_FAILURE: Final = 1
_OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
"""The exit code that shells have for a program whose output is not read."""


def run() -> NoReturn:
    """Runs the process, and ends it with the command's exit code."""
    _open_standard_streams()
    share_heap()
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
    """Opens the standard streams that are missing, so that their descriptors are not used for
    sockets, which libuv would refuse."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest one that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


class _Stopped(SystemExit):
    """A signal came before the server was started."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number  # as shells have it
        super().__init__(self.exit_code)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise _Stopped(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code: 2 for an error that the operator must correct, 1
    for a failure that a restart may solve."""
    environ = os.environ
    command: Command | None = None
    try:
        extra = extra_arguments(environ)
        line = sys.argv[1:] if argv is None else argv
        if line and not line[0].startswith("-") and line[0] not in COMMANDS:
            for extension in load_extensions(COMMAND_GROUP, line[0]):
                return _run_extension(extension, line[1:])
            check_first_word(line[0])
        arguments = parse(line, extra)
        settings = _settings(arguments, environ)
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


def _settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Returns the settings of a command line, of the environment, and of the file that one of them
    names. Earlier ones override later ones. Unused names of the environment and the file are added
    to the arguments, as `unused`. Raises ConfigurationError if one of them is wrong."""
    variables = read_environment(environ)
    settings, arguments.unused = variables.settings, variables.unused
    if arguments.command in (SERVE, RUN_BATCH):
        path = arguments.config_file or environ.get(CONFIG_FILE, "").strip()
        if path:
            of_file = read_config_file(Path(path))
            settings = of_file.settings | settings
            arguments.unused += of_file.unused
    return settings | mapped_flags(arguments) | read_flags(arguments)


def _run_extension(extension: Extension, line: Sequence[str]) -> int:
    """Runs the command of another package, and returns its exit code. Raises ConfigurationError if
    the package does not define a command, or the command does not return an exit code;
    and the errors of the command."""
    parser = _Parser(prog=f"fastovms {extension.entry.name}", allow_abbrev=False)
    with faults_named(extension.entry):
        command = extension.function(parser)
        if not callable(command):
            raise ConfigurationError(f"it must return a function, not {command!r}")
    code = command(parser.parse_args(line))
    with faults_named(extension.entry):
        if code is not None and not isinstance(code, int):
            raise ConfigurationError(f"it must return an exit code or None, not {code!r}")
    return code or 0


def _complain(error: Exception, code: int) -> int:
    print(f"fastovms: {' '.join(str(error).split())}", file=sys.stderr)
    return code


Command = Callable[[argparse.Namespace, Settings], int | None]
"""Runs a command, given the arguments and all settings. It returns the exit code; None = 0."""


def _command(arguments: argparse.Namespace) -> Command:
    """Returns the command to run: OVMS has flags for some commands of this server."""
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
    service = settings.section(ServiceConfig)
    with closing(LineWriter(service.log_file)) as log:
        handler = log_handler(logging.StreamHandler(log), service.log_format)
        start_log(handler, level_named(service.log_level))
        for line in (*unused_flags(arguments), *arguments.unused):
            logger.warning("%s", line)
        logger.info("fastovms %s is starting", __version__)
        if variables := names_of_set(os.environ):
            logger.info("settings come from variables of the environment: %s", ", ".join(variables))
        models, settings = chosen_models(arguments, given)
        # Imported here because OpenVINO takes some seconds, for which --help and a wrong flag need
        # not wait, nor the first line of the log.
        ahead, sockets = _compile_ahead(models, settings)
        with nullcontext() if sockets is None else closing(sockets):
            from fastovms.app.serve import serve

            read_models = listed and (lambda: chosen_models(arguments, given)[0])
            config = server_config(models, settings, listed and config_file(listed), read_models)
            serve(config, log, ahead, sockets)


def _compile_ahead(
    models: Sequence[ModelSource], settings: Settings
) -> tuple[CompileAhead | None, BoundSockets | None]:
    """Begins to compile a single model while the rest of the server is imported, once the server
    has its addresses. Returns the model and the sockets; None if there are several models, if the
    model must be downloaded, or if it is loaded on demand. Raises ConfigurationError if an address
    is not available."""
    if len(models) != 1 or settings.section(ResidencyConfig).loads_on_demand:
        return None, None
    finder = ModelFinder.of(settings.section(RepositoryConfig), os.environ)
    try:
        found = finder.find_here(models[0])
    except ConfigurationError:  # which the server reports
        found = None
    if found is None:
        return None, None
    from fastovms.app.compiling import compile_ahead
    from fastovms.http.listeners import bind_sockets

    sockets = bind_sockets(settings.section(HttpConfig), os.environ, os.getpid())
    return compile_ahead(found), sockets


def _pull(arguments: argparse.Namespace, settings: Settings) -> None:
    _pull_models(arguments.model_ids, settings)


def _pull_for_ovms(arguments: argparse.Namespace, settings: Settings) -> None:
    """Downloads the model and its draft model, if any, as OVMS's `--pull` does."""
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
    """Downloads models and prints their paths."""
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
    from fastovms.cli.tune import tune

    logging.basicConfig(level="WARNING", format="%(message)s")
    source = ModelSource(arguments.model, settings=settings.only(*MODEL_SECTIONS))
    print(tune(source, settings.section(RepositoryConfig)), flush=True)


def _list_models(arguments: argparse.Namespace, settings: Settings) -> None:
    for name in list_models(model_root(settings.section(RepositoryConfig).path, os.environ)):
        print(name)


def _configure(arguments: argparse.Namespace, settings: Settings) -> None:
    """Writes a graph file and prints its path. Environment variables are not written to it; the
    server reads them."""
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
    """Warns about model flags that a command ignores, except the task, which follows from the
    model's files."""
    given = read_flags(arguments).only(*MODEL_SECTIONS).given
    for flag in FLAGS:
        if flag.field in given and flag.field not in (*used, ENCODER.task):
            logger.warning("%s is not used: %s", flag.name, reason)


def _remove_from_config(arguments: argparse.Namespace, settings: Settings) -> None:
    flag = "--remove-from-config"
    name = _only_name(arguments, flag)
    remove_model(_edited_list(arguments, flag, arguments.remove_from_config), name)


def _edited_list(arguments: argparse.Namespace, flag: str, given: Path | bool) -> Path:
    """Returns the model list to edit, named by the flag or by --config-path. `given` is the flag's
    path, or True if it has none."""
    beside: Path | None = arguments.config_path
    if isinstance(given, bool):
        if beside is None:
            raise ConfigurationError(f"{flag} needs --config-path")
        return beside
    if beside is not None and _real(given) != _real(beside):
        raise ConfigurationError(
            f"{flag} {given} cannot be used with --config-path {beside}: these are different files"
        )
    return given


def _real(config: Path) -> str:
    return os.path.realpath(config_file(config))


def _only_name(arguments: argparse.Namespace, flag: str) -> str:
    if len(arguments.names) != 1:
        raise ConfigurationError(f"{flag} needs --model-name")
    name: str = arguments.names[0]
    return name
