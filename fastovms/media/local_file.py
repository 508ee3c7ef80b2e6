"""Reads images from the server's own disk, below the one directory that the operator allows."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fastovms.errors import ConfigurationError, InvalidField
from fastovms.media.data_url import too_large


class LocalFiles:
    """Reads the files below one directory.

    Args:
        root: the directory that may be read; None = none.

    Raises:
        ConfigurationError: it is no directory.
    """

    def __init__(self, root: Path | None) -> None:
        if root is not None and not root.is_dir():
            raise ConfigurationError(f"--allowed-local-media-path {root} is not a directory")
        self._root = None if root is None else os.path.realpath(root)

    def read(self, url: str, name: str, *, max_bytes: int) -> bytes:
        """Returns the content of the file at an absolute path, or at a `file:` URL. It may take as
        long as the disk does.

        Raises:
            InvalidField: files are not allowed, or this one is not, cannot be read, or is too
                large. Whether a file outside the directory exists cannot be told from this.
        """
        if self._root is None:
            raise InvalidField(f"{name}: this server reads no local files", param=name)
        path = _path_of(url)
        if path is None or ".." in path.split("/"):
            raise InvalidField(
                f"{name} must be the absolute path of a file, without ..", param=name
            )
        try:
            data = self._read(path, name, max_bytes + 1)
        except (OSError, ValueError):
            raise InvalidField(f"{name}: there is no such file to be read", param=name) from None
        if len(data) > max_bytes:
            raise too_large(name, max_bytes)
        return data

    def _read(self, path: str, name: str, max_bytes: int) -> bytes:
        self._check_inside(os.path.realpath(path))
        # Not blocking, since a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            # The path may lead elsewhere by now; what has been opened stays.
            self._check_inside(os.readlink(f"/proc/self/fd/{descriptor}"))
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise PermissionError
            if status.st_nlink > 1:
                # Another of its names may lie outside, and nothing tells which of them is its own.
                raise InvalidField(
                    f"{name}: a file with several hard links is not read; a copy would be",
                    param=name,
                )
            return file.read(max_bytes)

    def _check_inside(self, path: str) -> None:
        assert self._root is not None
        if os.path.commonpath([self._root, path]) != self._root:
            raise PermissionError


def _path_of(url: str) -> str | None:
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = unquote(parts.path)
    return path if path.startswith("/") else None
