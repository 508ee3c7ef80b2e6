"""`fastovms serve`: determines the models and settings, and runs the server."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastovms import __version__
from fastovms.app.catalog import ModelFinder, parse_model, source_model, with_names
from fastovms.cli.command import CommandParser, Run, Stopped
from fastovms.cli.environment import all_settings, extra_arguments, set_variables
from fastovms.cli.flags import COMMON_GROUP, GROUPS, add_flags
from fastovms.cli.foreign_flags import MODES, add_foreign_flags, normalize_serve, unused_flags
from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.server_config import (
    MODEL_SECTIONS,
    SOURCE,
    ModelSource,
    RepositoryConfig,
    ResidencyConfig,
    ServiceConfig,
    Settings,
)
from fastovms.service.log_writer import LineWriter
from fastovms.setting import path, text
from fastovms.telemetry.log_format import level_named, log_handler, start_log

if TYPE_CHECKING:
    from fastovms.app.compiling import EarlyCompilation
    from fastovms.app.serve import ServerConfig
    from fastovms.app.supply import ReadList
    from fastovms.http.listeners import BoundSockets

logger = logging.getLogger(__name__)


def serve(parser: CommandParser) -> Run:
    """Adds the arguments to the parser, and returns the function that runs the command."""
    parser.usage = "%(prog)s [FLAG ...] [MODEL]"
    parser.description = (
        "Serves models over HTTP, with the APIs of OpenAI and vLLM below /v1 and of OpenVINO Model "
        "Server below /v3."
    )
    parser.epilog = (
        "Sizes may be written as 64K, 16M or 1G, times as 90s, 15m, 2h or 30d, and large numbers "
        "as 8k (8000) or 8K (8192). Flags of OpenVINO Model Server and vLLM are accepted: those "
        "without an equivalent are ignored with a warning, or refused if they would change answers."
    )
    extra = normalize_serve(extra_arguments(os.environ))
    parser.normalize = lambda line: [*extra, *normalize_serve(line)]
    _add_ovms_modes(parser)
    add_serving_arguments(parser, shows_all=parser.shows_all)
    return _run


def _run(arguments: argparse.Namespace) -> int | None:
    settings = all_settings(arguments, os.environ)
    edits = (arguments.add_to_config, arguments.remove_from_config)
    is_mode = arguments.pull or arguments.list_models or arguments.configure
    if is_mode or any(edit is not None for edit in edits):
        from fastovms.cli.ovms_modes import run_mode

        run_mode(arguments, settings)
        return None
    try:
        _serve(arguments, settings)
    except Stopped:  # raised by the signal handler: exit in order
        return 0
    return None


def _add_ovms_modes(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for OVMS's modes other than serving."""
    hidden = argparse.SUPPRESS
    switch = argparse.BooleanOptionalAction
    for mode in MODES:
        parser.add_argument(mode, action=switch, default=False, help=hidden)
    for edit in ("--add-to-config", "--remove-from-config"):
        # The flag takes the list's path, as in older versions, or is used with --config-path.
        parser.add_argument(edit, type=path, nargs="?", const=True, help=hidden)


def add_serving_arguments(parser: argparse.ArgumentParser, *, shows_all: bool) -> None:
    """Adds the model, all flags of `serve` and those of other servers. `shows_all` is whether the
    help shows all flags or only the most used ones."""
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
        "--modelfile",
        metavar="FILE",
        type=path,
        help="Modelfile of Ollama: its model and settings, which other flags override"
        if shows_all
        else argparse.SUPPRESS,
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
    # OVMS's other spellings of the flag.
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
    if arguments.modelfile and (arguments.config_path or len(arguments.models) > 1):
        raise ConfigurationError("--modelfile is for one model, and cannot be used with several")
    of_list = Settings()
    match taken:
        case ["MODEL"]:
            sources = [ModelSource(arguments.model)]
        case ["--model"]:
            sources = [parse_model(text) for text in arguments.models]
        case ["--model-path"]:
            sources = [ModelSource(_in_repository(arguments.model_path, root))]
        case ["--source-model"]:
            sources = [ModelSource(source_model(arguments.source_model, arguments.gguf_filename))]
        case ["--config-path"]:
            from fastovms.parts.ovms.config_list import read_config_list

            sources, of_list = read_config_list(arguments.config_path)
        case _:
            sources = [_unnamed(arguments, settings, root)]
    if arguments.names:
        return with_names(sources, arguments.names), of_list
    if len(sources) == 1 and not sources[0].names:
        sources = with_names(sources, settings.section(ModelSource).names)
    return sources, of_list


def _unnamed(arguments: argparse.Namespace, settings: Settings, root: Path | None) -> ModelSource:
    """Returns the model to serve if no flag names one: the environment's, or one of the repository
    by name, as in OVMS, or the demo model."""
    if SOURCE.location not in settings.given and root is not None and arguments.names:
        return ModelSource(str(root / arguments.names[0]))
    return settings.section(ModelSource)


def _in_repository(location: Path, root: Path | None) -> str:
    """Returns a model's path, which may be given relative to the repository."""
    if root is not None and not location.exists() and (root / location).exists():
        return str(root / location)
    return str(location)


def server_config(
    models: Sequence[ModelSource],
    settings: Settings,
    model_list: Path | None = None,
    read_models: ReadList | None = None,
) -> ServerConfig:
    """Returns the server's configuration. The first call takes some seconds, because it imports
    OpenVINO."""
    from fastovms.app.serve import ServerConfig

    return ServerConfig.of(models, settings, model_list=model_list, read_models=read_models)


def _serve(arguments: argparse.Namespace, settings: Settings) -> None:
    given, listed = settings, arguments.config_path
    service = settings.section(ServiceConfig)
    with closing(LineWriter(service.log_file)) as log:
        handler = log_handler(logging.StreamHandler(log), service.log_format)
        start_log(handler, level_named(service.log_level))
        for line in (*unused_flags(arguments), *arguments.unused):
            logger.warning("settings: %s", line)
        logger.info("fastovms %s is starting", __version__)
        if variables := set_variables(os.environ):
            logger.info("settings come from variables of the environment: %s", ", ".join(variables))
        models, settings = chosen_models(arguments, given)
        # Imported here because importing OpenVINO takes seconds. The help, errors of flags and the
        # first line of the log do not wait for it.
        ahead, sockets = _compile_ahead(models, settings)
        with nullcontext() if sockets is None else closing(sockets):
            from fastovms.app import serve as server

            if listed is not None:
                from fastovms.parts.ovms.config_list import config_file

                listed = config_file(listed)
            read_models = listed and (lambda: chosen_models(arguments, given)[0])
            server.serve(server_config(models, settings, listed, read_models), log, ahead, sockets)


def _compile_ahead(
    models: Sequence[ModelSource], settings: Settings
) -> tuple[EarlyCompilation | None, BoundSockets | None]:
    """Starts to compile a single model while the rest of the server is imported, after binding the
    server's addresses. Returns the compilation and the sockets; (None, None) if there are several
    models, or the model must be downloaded or is loaded on demand. Raises ConfigurationError if an
    address is not available."""
    policies = [model.residency for model in models]
    if len(models) != 1 or settings.section(ResidencyConfig).loads_on_demand(policies):
        return None, None
    finder = ModelFinder.of(settings.section(RepositoryConfig), os.environ)
    try:
        found = finder.find_here(models[0])
    except ConfigurationError:  # the server reports the error later
        found = None
    if found is None:
        return None, None
    from fastovms.app.compiling import compile_ahead
    from fastovms.http.listeners import bind_sockets

    sockets = bind_sockets(settings.section(HttpConfig), os.environ, os.getpid())
    return compile_ahead(found), sockets
