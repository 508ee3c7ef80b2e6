"""Finds models: directories, GGUF files, graphs of OVMS, models of a hub."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from fastovms.config import ChatConfig, EncoderConfig, EngineConfig, ModelLimits
from fastovms.errors import ConfigurationError
from fastovms.parts.ovms.graph import GRAPH_FILE, read_graph, read_plugin_config
from fastovms.server_config import ModelConfig, ModelFiles, ModelSource, RepositoryConfig, Settings
from fastovms.system.disk import NOWHERE, read_file, user_directory

logger = logging.getLogger(__name__)


MAIN: Final = "main"
"""The revision that a hub has where none is named."""

_FILE: Final = ".pulled"
"""Its ending is none of the files that tell models apart."""
_COMMIT: Final = re.compile("[0-9a-f]{7,40}")


class PulledRevision(NamedTuple):
    """A downloaded revision of a model.

    Attributes:
        revision: the requested branch, tag or commit.
        commit: the commit at that time; "" = unknown.
    """

    revision: str
    commit: str

    def is_named(self, revision: str) -> bool:
        """Returns whether a requested revision means this one. A branch counts as the commit that
        was downloaded."""
        is_commit = _COMMIT.fullmatch(revision) is not None and self.commit.startswith(revision)
        return revision == self.revision or is_commit

    def __str__(self) -> str:
        return f"{self.revision} (commit {self.commit})" if self.commit else self.revision


def read_pulled(path: Path) -> PulledRevision | None:
    """Returns the revision of the model at a path; None = unknown, for example because the model
    was copied there."""
    try:
        found = json.loads(read_file(_note(path)))
    except (OSError, ValueError, RecursionError):
        return None
    match found:
        case {"revision": str(revision), "commit": str(commit)}:
            return PulledRevision(revision, commit)
    return None


def forget_pulled(path: Path) -> None:
    """Deletes the record of a download, before another model is stored at the path. Raises
    OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _note(path).unlink()


def note_pulled(path: Path, pulled: PulledRevision) -> None:
    """Writes the record of a download for `read_pulled`. Raises OSError."""
    _note(path).write_text(f"{json.dumps(pulled._asdict())}\n", encoding="utf-8")


def _note(path: Path) -> Path:
    """Returns the path of the record: in a model's directory, or next to a model that is one
    file."""
    return path / _FILE if path.is_dir() else path.with_name(f".{path.name}{_FILE}")


# Keeps models of a Hugging Face hub in a directory of their own, and downloads them.
#
# huggingface_hub does the work, with its environment variables (HF_TOKEN, HF_ENDPOINT,
# HF_HUB_OFFLINE, proxies) and its progress bars.


_MODEL_ID: Final = re.compile(
    r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>[\w./ -]+\.gguf))?", re.ASCII
)
_FILE_SUFFIXES: Final = (".gguf", ".xml", ".bin", ".pbtxt")
_IR: Final = re.compile(r"openvino_(language_)?model\.xml")
_TIMEOUT: Final = 30.0
"""Seconds in which the hub must say what it has."""


def is_model_id(text: str) -> bool:
    """Returns whether a text may name a model of a hub, "ORG/NAME", or a file of one,
    "ORG/NAME/FILE.gguf". A name that ends as a file does is one of this machine."""
    match = _MODEL_ID.fullmatch(text)
    if match is None or ".." in text.split("/"):
        return False
    return not match["repository"].endswith(_FILE_SUFFIXES)


def repository_of(model_id: str) -> str:
    """Returns the "ORG/NAME" of an id."""
    return "/".join(model_id.split("/")[:2])


def model_root(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Returns the directory of downloaded models: `path`, or by default in the user's cache
    directory."""
    return path or (user_directory("cache", environ) or NOWHERE) / "models"


class Repository:
    """The downloaded models of a hub, each in ORG/NAME below `root`. A download is made in
    NAME.partial, so that an existing model is always complete. An interrupted download resumes with
    the missing files."""

    def __init__(self, root: Path, *, endpoint: str | None = None) -> None:
        """
        Args:
            endpoint: the hub's address; None = the default of huggingface_hub.
        """
        self.root = root
        self._endpoint = endpoint

    def find(self, model_id: str) -> Path | None:
        """Returns the path of the model, or None if it must be downloaded."""
        path = self.root / model_id
        return path if path.exists() else None

    def pull(self, model_id: str, *, revision: str | None = None, overwrite: bool = False) -> Path:
        """Downloads a model that is not stored yet.

        Args:
            revision: branch, tag or commit; None = the existing one, or the main branch.
            overwrite: whether to replace an existing model.

        Raises:
            ConfigurationError: the model is unknown, is not an OpenVINO model, cannot be reached,
                or another revision of it exists.
        """
        path = self.root / model_id
        if path.exists() and not overwrite:
            if revision is not None:
                _check_revision(model_id, path, revision)
            return path
        repository = repository_of(model_id)
        file = model_id[len(repository) + 1 :]
        folder = self.root / repository
        partial = folder.with_name(f"{folder.name}.partial")
        logger.info("downloading %s to %s", model_id, folder)
        pulled = self._download(model_id, revision, partial, file)
        try:
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # huggingface_hub's notes
            forget_pulled(path)
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial / file, path)
            note_pulled(path, pulled)
            if file:
                shutil.rmtree(partial)
        except OSError as error:
            raise _failure(model_id, f"{path}: {error.strerror or error}") from None
        return path

    def _download(
        self, model_id: str, revision: str | None, folder: Path, file: str
    ) -> PulledRevision:
        """Downloads the files of a model and returns the revision. `file` is the only file to
        download; "" = all."""
        # Imported here because it takes a moment that a model at hand need not wait.
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request
        api = HfApi(endpoint=self._endpoint, library_name="fastovms")
        try:
            repository = repository_of(model_id)
            info = api.model_info(repository, revision=revision, timeout=_TIMEOUT)
            _check_files(model_id, [sibling.rfilename for sibling in info.siblings or ()], file)
            folder.mkdir(parents=True, exist_ok=True)
            # With the commit, an interrupted pull is not taken for a whole one.
            snapshot_download(
                repository,
                revision=info.sha,
                local_dir=folder,
                allow_patterns=[file] if file else None,
                endpoint=self._endpoint,
            )
            return PulledRevision(revision or MAIN, info.sha or "")
        except GatedRepoError:
            raise _failure(model_id, "ask for access on its page, and set HF_TOKEN") from None
        except RepositoryNotFoundError:
            reason = f"{api.endpoint} has no such model, or it is private: set HF_TOKEN"
            raise _failure(model_id, reason) from None
        except RevisionNotFoundError:
            raise _failure(model_id, f"it has no revision {revision}") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise _failure(model_id, f"{api.endpoint} answered {status}") from None
        except HFValidationError as error:
            raise _failure(model_id, str(error)) from None
        except OfflineModeIsEnabled:
            raise _failure(
                model_id, "HF_HUB_OFFLINE is set, and the model has not been downloaded yet"
            ) from None
        except ConfigurationError:
            raise
        except OSError as error:
            raise _failure(model_id, str(error)) from None
        except Exception as error:  # the network's errors are several libraries'
            reason = f"{api.endpoint} cannot be reached: {error or type(error).__name__}"
            raise _failure(model_id, reason) from None


def _check_revision(model_id: str, path: Path, revision: str) -> None:
    """Raises ConfigurationError if another revision than the requested one is stored."""
    pulled = read_pulled(path)
    if pulled is None:
        logger.warning(
            "cannot tell whether the stored %s is revision %s; --overwrite-models downloads that "
            "revision",
            path,
            revision,
        )
    elif not pulled.is_named(revision):
        reason = f"{path} is revision {pulled}, not {revision}: --overwrite-models replaces it"
        raise _failure(model_id, reason)


def _check_files(model_id: str, files: list[str], file: str) -> None:
    """Raises ConfigurationError where the files of a model hold nothing that could be served."""
    ggufs = [name for name in files if name.endswith(".gguf")]
    if file:
        if file not in files:
            raise _failure(model_id, f"there is no such file, only {', '.join(ggufs) or 'others'}")
    elif not any(map(_IR.fullmatch, files)):
        reason = (
            "it is not in OpenVINO's format: export it with optimum-cli, or pull a model of the "
            "organization OpenVINO"
        )
        if ggufs:
            reason = f"it has GGUF files: name one of {', '.join(ggufs)} behind it"
        raise _failure(model_id, reason)


def _failure(model_id: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"cannot pull {model_id}: {reason}")


_OWN_DEFAULTS: Final = ModelFiles().generation_config
_NO_DEFAULTS: Final = Path("vllm")
"""The kinds of `--generation-config` in addition to a path, in vLLM's words."""


def parse_model(text: str) -> ModelSource:
    """Parses a value of `--model`: "MODEL" or "NAME=MODEL". A directory may have a "=" itself."""
    name, separator, location = text.partition("=")
    if not separator or Path(text).exists():
        return ModelSource(text)
    if not name or not location:
        raise ConfigurationError(f"--model must be MODEL or NAME=MODEL, not {text!r}")
    return ModelSource(location, (name,))


def with_names(sources: Sequence[ModelSource], names: Sequence[str]) -> list[ModelSource]:
    """Adds names that are given by a separate flag to the only model."""
    if not names:
        return list(sources)
    if len(sources) > 1:
        raise ConfigurationError(
            f"--served-model-name is for one model, not {len(sources)}: name each with "
            "--model NAME=MODEL"
        )
    return [replace(source, names=tuple(dict.fromkeys(names))) for source in sources]


@contextmanager
def _looking() -> Iterator[None]:
    """Runs a look at the file system. A directory without read permission is not a failure of the
    server."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot look for the model: {error}") from None


class ModelFinder:
    """Finds models in directories and in the repository, and downloads missing ones."""

    def __init__(self, repository: Repository, config: RepositoryConfig) -> None:
        self._repository = repository
        self._config = config

    @classmethod
    def of(cls, config: RepositoryConfig, environ: Mapping[str, str]) -> ModelFinder:
        """Returns the finder for the operator's repository; see `model_root`."""
        return cls(Repository(model_root(config.path, environ)), config)

    @_looking()
    def needs_network(self, source: ModelSource) -> bool:
        """Returns whether `find` has to download something. Raises ConfigurationError like
        `find`."""
        return any(self._is_missing(location) for location in _locations(source))

    def find_here(self, source: ModelSource) -> ModelConfig | None:
        """Returns a model as `find` does; None = it would have to be downloaded."""
        return None if self.needs_network(source) else self.find(source)

    @_looking()
    def find(self, source: ModelSource) -> ModelConfig:
        """Returns a model to serve. Does not check the files.

        Raises:
            ConfigurationError: the model cannot be downloaded, or its graph is invalid.
        """
        path = self.locate(source.location)
        is_id = self._is_of_hub(source.location)
        graph = path / GRAPH_FILE if path.is_dir() else path
        settings = Settings()
        if graph.suffix == Path(GRAPH_FILE).suffix and graph.is_file():
            settings, path = _graph_settings(graph), graph.parent
        name = repository_of(source.location) if is_id else _name_of(path)
        settings |= source.settings
        files = settings.section(ModelFiles)
        return ModelConfig(
            files.path or path,
            source.names or (name,),
            self._engine(settings.section(EngineConfig)),
            settings.section(ChatConfig),
            settings.section(EncoderConfig),
            settings.section(ModelLimits),
            _generation_config(files.generation_config),
            files.override_generation_config,
            has_defaults=files.generation_config != _NO_DEFAULTS,
        )

    def _engine(self, engine: EngineConfig) -> EngineConfig:
        """Moves the members of `plugin_config` that are not for the device to their own fields, and
        finds the draft model."""
        config = read_plugin_config(engine.plugin_config)
        for line in config.unused:
            logger.warning("%s", line)
        if engine.enable_prompt_lookup is None:
            engine = replace(engine, enable_prompt_lookup=config.prompt_lookup)
        if engine.draft_model is not None:
            engine = replace(engine, draft_model=self.locate(str(engine.draft_model)))
        return replace(engine, plugin_config=config.properties)

    def locate(self, location: str) -> Path:
        """Returns the directory of a model, after downloading it if needed. A missing directory is
        returned unchanged unless it may be a model id."""
        if not self._is_of_hub(location):
            return _path(location)
        config = self._config
        try:
            return self._repository.pull(
                location, revision=config.revision, overwrite=config.overwrite
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{location} is not a file or directory, and cannot be downloaded: {error}"
            ) from None

    def _is_of_hub(self, location: str) -> bool:
        """Returns whether a location is a model of a hub: neither a path that exists, nor a file
        that is missing from a directory that exists and has no models of a hub."""
        path = _path(location)
        if path.exists() or not is_model_id(location):
            return False
        stored = self._repository.root / location
        is_missing_file = location.count("/") > 1 and path.parent.is_dir() and not stored.exists()
        return not is_missing_file or path.parent.resolve() == stored.parent.resolve()

    def _is_missing(self, location: str) -> bool:
        if not self._is_of_hub(location):
            return False
        return self._config.overwrite or self._repository.find(location) is None


def _path(location: str) -> Path:
    """Returns a path of this machine. Shells do not expand the ~ in `--model NAME=~/DIR`."""
    return Path(os.path.expanduser(location))


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def _locations(source: ModelSource) -> list[str]:
    draft = source.settings.section(EngineConfig).draft_model
    return [source.location, *([] if draft is None else [str(draft)])]


def _generation_config(whence: Path) -> Path | None:
    """Returns the path of the generation config file; None = the model's own."""
    if whence in (_OWN_DEFAULTS, _NO_DEFAULTS):
        return None
    path = whence / "generation_config.json" if whence.is_dir() else whence
    if not path.is_file():
        raise ConfigurationError(f"--generation-config: no such file: {path}")
    return path


def _graph_settings(graph: Path) -> Settings:
    node = read_graph(graph)
    for line in node.unused:
        logger.warning("graph file %s: %s", graph, line)
    return node.settings
