"""Downloads models from a Hugging Face hub into the server's model directory.

huggingface_hub does the work, with its environment variables (HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE, proxies) and its progress bars.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.gguf.parts import part_names
from fastovms.system.disk import read_file

logger = logging.getLogger(__name__)

MAIN: Final = "main"
"""The revision that is downloaded if none is named."""

_FILE: Final = ".pulled"
"""The name of the download record in a model's directory. No model file has this suffix."""
_COMMIT: Final = re.compile("[0-9a-f]{7,40}")


class PulledRevision(NamedTuple):
    """A downloaded revision of a model.

    Attributes:
        revision: the requested branch, tag or commit.
        commit: the commit that was downloaded; "" = unknown.
    """

    revision: str
    commit: str

    def is_named(self, revision: str) -> bool:
        """Returns whether `revision` names this revision or its commit. A branch that has moved
        since the download still matches."""
        is_commit = _COMMIT.fullmatch(revision) is not None and self.commit.startswith(revision)
        return revision == self.revision or is_commit

    def __str__(self) -> str:
        return f"{self.revision} (commit {self.commit})" if self.commit else self.revision


def read_pulled(path: Path) -> PulledRevision | None:
    """Returns the downloaded revision of the model at a path; None = the model has no download
    record, for example because it was copied there."""
    try:
        found = json.loads(read_file(_note(path)))
    except (OSError, ValueError, RecursionError):
        return None
    match found:
        case {"revision": str(revision), "commit": str(commit)}:
            return PulledRevision(revision, commit)
    return None


def forget_pulled(path: Path) -> None:
    """Deletes the download record of a path before another model is stored there. Raises OSError if
    the record cannot be deleted."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _note(path).unlink()


def note_pulled(path: Path, pulled: PulledRevision) -> None:
    """Writes the download record of a path, which `read_pulled` returns. Raises OSError if the
    record cannot be written."""
    _note(path).write_text(f"{json.dumps(pulled._asdict())}\n", encoding="utf-8")


def _note(path: Path) -> Path:
    """Returns the path of the download record: in the model's directory, or next to a single-file
    model."""
    return path / _FILE if path.is_dir() else path.with_name(f".{path.name}{_FILE}")


_IR: Final = re.compile(r"(\w+/)?openvino_(\w+_)?model\.xml")
"""Matches the graph files of a model. Image generation models have their graphs in subfolders."""

_TIMEOUT: Final = 30.0
"""Timeout in seconds for fetching the model's metadata from the hub."""


def repository_of(model_id: str) -> str:
    """Returns the "ORG/NAME" part of a model id, which may continue with a file name."""
    return "/".join(model_id.split("/")[:2])


class Repository:
    """Models downloaded from a hub, each in ORG/NAME below `root`. A download goes to NAME.partial
    first, so a model that exists is always complete. An interrupted download resumes with the
    missing files."""

    def __init__(self, root: Path, *, endpoint: str | None = None) -> None:
        """Args:
        root: the directory of the models.
        endpoint: the hub's URL; None = the default of huggingface_hub.
        """
        self.root = root
        self._endpoint = endpoint

    def pull(self, model_id: str, *, revision: str | None = None, overwrite: bool = False) -> Path:
        """Downloads a model unless it is stored already, and returns its path.

        Args:
            revision: branch, tag or commit; None = the stored revision, or the main branch.
            overwrite: whether to replace a stored model.

        Raises:
            ConfigurationError: the model is unknown or not an OpenVINO model, the hub cannot be
                reached, or another revision of the model is stored.
        """
        path = self.root / model_id
        if path.exists() and not overwrite:
            if revision is not None:
                _check_revision(model_id, path, revision)
            return path
        repository = repository_of(model_id)
        file = model_id[len(repository) + 1 :]
        files = part_names(file) if file else []
        folder = self.root / repository
        partial = folder.with_name(f"{folder.name}.partial")
        logger.info("downloading %s to %s", model_id, folder)
        pulled = self._download(model_id, revision, partial, files)
        try:
            shutil.rmtree(
                partial / ".cache", ignore_errors=True
            )  # huggingface_hub's download records
            forget_pulled(path)
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            # The named part is downloaded last: if it exists, all parts do.
            for name in sorted(files, key=file.__eq__) or [""]:
                place = self.root / repository / name
                os.replace(partial / name, place)
                note_pulled(place, pulled)
            if file:
                shutil.rmtree(partial)
        except OSError as error:
            raise _failure(model_id, f"{path}: {error.strerror or error}") from None
        return path

    def _download(
        self, model_id: str, revision: str | None, folder: Path, files: list[str]
    ) -> PulledRevision:
        """Downloads a model and returns the downloaded revision. `files` lists the files to
        download; an empty list means all files of the repository."""
        # Imported here because the import is slow, and not needed for a local model.
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        logging.getLogger("httpx2").setLevel(logging.WARNING)  # httpx logs every request at INFO
        api = HfApi(endpoint=self._endpoint, library_name="fastovms")
        try:
            repository = repository_of(model_id)
            info = api.model_info(repository, revision=revision, timeout=_TIMEOUT)
            _check_files(model_id, [sibling.rfilename for sibling in info.siblings or ()], files)
            folder.mkdir(parents=True, exist_ok=True)
            # Naming the commit prevents that an interrupted download counts as complete.
            snapshot_download(
                repository,
                revision=info.sha,
                local_dir=folder,
                allow_patterns=files or None,
                endpoint=self._endpoint,
            )
            return PulledRevision(revision or MAIN, info.sha or "")
        except GatedRepoError:
            raise _failure(model_id, "ask for access on its page, and set HF_TOKEN") from None
        except RepositoryNotFoundError:
            reason = f"{api.endpoint} has no such model, or it is private: set HF_TOKEN"
            raise _failure(model_id, reason) from None
        except RevisionNotFoundError:
            raise _failure(model_id, f"the model has no revision {revision}") from None
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
        except Exception as error:  # network errors come from several libraries
            reason = f"{api.endpoint} cannot be reached: {error or type(error).__name__}"
            raise _failure(model_id, reason) from None


def _check_revision(model_id: str, path: Path, revision: str) -> None:
    """Raises ConfigurationError if the stored revision is not the requested one."""
    pulled = read_pulled(path)
    if pulled is None:
        logger.warning(
            "cannot find out whether the stored %s is revision %s; --overwrite-models downloads "
            "that revision",
            path,
            revision,
        )
    elif not pulled.is_named(revision):
        reason = f"{path} is revision {pulled}, not {revision}: --overwrite-models replaces it"
        raise _failure(model_id, reason)


def _check_files(model_id: str, files: list[str], wanted: list[str]) -> None:
    """Raises ConfigurationError if one of the `wanted` files is missing from `files`, or, if none
    are wanted, if no file can be served."""
    ggufs = [name for name in files if name.endswith(".gguf")]
    missing = next((name for name in wanted if name not in files), None)
    if missing is not None:
        named = ", ".join(ggufs) or "none"
        raise _failure(model_id, f"the model has no file {missing}; its GGUF files are: {named}")
    if wanted:
        return
    if not any(map(_IR.fullmatch, files)):
        reason = (
            "it is not in OpenVINO's format: export it with optimum-cli, or download a model of "
            "the organization OpenVINO"
        )
        if ggufs:
            reason = f"it has GGUF files: name one of {', '.join(ggufs)} behind it"
        raise _failure(model_id, reason)


def _failure(model_id: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"cannot download {model_id}: {reason}")
