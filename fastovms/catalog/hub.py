"""Keeps models of a Hugging Face hub in a directory of their own, and downloads them.

huggingface_hub does the work, with its environment variables (HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE, proxies) and its progress bars.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastovms.catalog.pulled_revision import (
    MAIN,
    PulledRevision,
    forget_pulled,
    note_pulled,
    read_pulled,
)
from fastovms.errors import ConfigurationError
from fastovms.system.user_dirs import NOWHERE, user_directory

logger = logging.getLogger(__name__)

_MODEL_ID: Final = re.compile(
    r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>[\w./ -]+\.gguf))?", re.ASCII
)
_IR: Final = re.compile(r"openvino_(language_)?model\.xml")
_TIMEOUT: Final = 30.0
"""Seconds in which the hub must say what it has."""


def is_model_id(text: str) -> bool:
    """Returns whether a text may name a model of a hub, "ORG/NAME", or a file of one,
    "ORG/NAME/FILE.gguf"."""
    return _MODEL_ID.fullmatch(text) is not None and ".." not in text.split("/")


def repository_of(model_id: str) -> str:
    """Returns the "ORG/NAME" of an id."""
    return "/".join(model_id.split("/")[:2])


def model_root(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Returns where models are kept: `path`, or by default in the user's cache directory."""
    return path or (user_directory("cache", environ) or NOWHERE) / "models"


class Repository:
    """The models of a hub that are kept here, each in ORG/NAME below `root`. What is there is
    whole: a model that is being pulled is beside it, in NAME.partial, and a pull that was cut short
    goes on with the files that it had not finished."""

    def __init__(self, root: Path, *, endpoint: str | None = None) -> None:
        """
        Args:
            endpoint: the hub's address; None = as huggingface_hub has it.
        """
        self.root = root
        self._endpoint = endpoint

    def find(self, model_id: str) -> Path | None:
        """Returns where the model is, or None when it must be pulled first."""
        path = self.root / model_id
        return path if path.exists() else None

    def pull(self, model_id: str, *, revision: str | None = None, overwrite: bool = False) -> Path:
        """Downloads a model that is not there yet, which takes as long as the network does.

        Args:
            revision: branch, tag or commit; None = what is there, else the main branch.
            overwrite: whether to take what the hub has now in the place of what is there.

        Raises:
            ConfigurationError: there is no such model, it is not for OpenVINO, it cannot be had
                from here, or another revision of it is there.
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
        logger.info("pulling %s into %s", model_id, folder)
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
        """Downloads the files of a model, and returns what they are. `file` is the only one that is
        wanted; "" = all."""
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
            raise _failure(model_id, "HF_HUB_OFFLINE is set, and it is not here yet") from None
        except ConfigurationError:
            raise
        except OSError as error:
            raise _failure(model_id, str(error)) from None
        except Exception as error:  # the network's errors are several libraries'
            reason = f"{api.endpoint} cannot be reached: {error or type(error).__name__}"
            raise _failure(model_id, reason) from None


def _check_revision(model_id: str, path: Path, revision: str) -> None:
    """Raises ConfigurationError where another revision than the one that is asked for is there."""
    pulled = read_pulled(path)
    if pulled is None:
        logger.warning(
            "whether %s is revision %s is not known: --overwrite-models pulls that", path, revision
        )
    elif not pulled.is_named(revision):
        reason = f"{path} is revision {pulled}, not {revision}: --overwrite-models pulls that"
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
