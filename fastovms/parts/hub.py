"""Keeps models of a Hugging Face hub in a directory of their own, and downloads them.

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
"""The revision that a hub has where none is named."""

_FILE: Final = ".pulled"
"""The name of a file in a model's directory. No file of a model has this ending."""
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


_IR: Final = re.compile(r"(\w+/)?openvino_(\w+_)?model\.xml")
"""The graphs of a model. Models that generate images have theirs in folders."""

_TIMEOUT: Final = 30.0
"""The timeout in seconds for the hub's description of a model."""


def repository_of(model_id: str) -> str:
    """Returns the "ORG/NAME" of an id."""
    return "/".join(model_id.split("/")[:2])


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
        files = part_names(file) if file else []
        folder = self.root / repository
        partial = folder.with_name(f"{folder.name}.partial")
        logger.info("downloading %s to %s", model_id, folder)
        pulled = self._download(model_id, revision, partial, files)
        try:
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # huggingface_hub's notes
            forget_pulled(path)
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            # The named part comes last: if it is there, all are.
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
        """Downloads the files of a model and returns the revision. `files` are all that are
        downloaded; none = all of the repository."""
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
            # With the commit, an interrupted download is not taken for a complete one.
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
    """Raises ConfigurationError if another revision than the requested one is stored."""
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
    """Raises ConfigurationError if the files of a model do not have all that are wanted, or, if
    none are named, nothing that could be served."""
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
