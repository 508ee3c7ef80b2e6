"""Extensions: endpoints and commands of other packages, found by Python entry points.

`fastovms.endpoints` names a function `(context: ApiContext) -> Iterable[Route]`, and
`fastovms.commands` a function `(parser: ArgumentParser) -> Callable[[Namespace], int | None]`; the
entry point's name is the command's. docs/extensions.md has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError

ENDPOINTS: Final = "fastovms.endpoints"
COMMANDS: Final = "fastovms.commands"


class Extension(NamedTuple):
    """An extension's function and its entry point.

    Attributes:
        entry: the entry point: its group, its name, and the function's location.
        function: the function itself.
    """

    entry: EntryPoint
    function: Callable[..., Any]


def load_extensions(group: str, name: str | None = None) -> list[Extension]:
    """Imports and returns the extensions of a group, or only the extension of this name.

    Raises:
        ConfigurationError: an extension cannot be imported, or is not a function.
    """
    found = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    extensions = []
    for entry in sorted(found):
        with faults_named(entry):
            function = entry.load()
            if not callable(function):
                raise ConfigurationError(f"it is not a function, but {function!r}")
        extensions.append(Extension(entry, function))
    return extensions


@contextmanager
def faults_named(entry: EntryPoint) -> Iterator[None]:
    """Converts an exception in the context to an error that names the extension's entry point.

    Raises:
        ConfigurationError: the code in the context has failed.
    """
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
        message = f"{entry.group}: {entry.name} ({entry.value}): {kind}{error}"
        raise ConfigurationError(message) from error
