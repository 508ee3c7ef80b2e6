"""Finds the files of split GGUF models by llama.cpp's naming scheme (NAME-00001-of-00003.gguf)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fastovms.errors import ConfigurationError

PART_ENDING: Final = "-00001-of-00003.gguf"
"""An example of a part's file name ending, for messages."""

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
_NUM_NAMED: Final = 3


def part_names(name: str) -> list[str]:
    """Returns the file names of all parts of a split model, in order, given the name of one part.
    Returns only `name` if it is not the name of a part."""
    found = _PART.fullmatch(name)
    if found is None or not 0 < int(found[2]) <= int(found[3]):
        return [name]
    return [f"{found[1]}-{n:05}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]


def model_name(name: str) -> str:
    """Returns a GGUF file's name without the extension and the part number; other names
    unchanged."""
    found = _PART.fullmatch(name)
    return found[1] if found else name.removesuffix(".gguf")


def part_files(path: Path) -> list[Path]:
    """Returns all files of the model to which a file belongs, in order. Raises ConfigurationError
    if a part is missing."""
    names = part_names(path.name)
    if len(names) == 1:
        return [path]
    files = [path.with_name(name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        more = f" and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
        raise ConfigurationError(
            f"{path} is one of {len(files)} parts of a model, of which {path.parent} does not have "
            f"{', '.join(missing[:_NUM_NAMED])}{more}"
        )
    return files
