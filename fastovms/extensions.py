"""Extensions: endpoints and commands of other packages, found by Python entry points.

`fastovms.endpoints` names a function `(context: ApiContext) -> Iterable[Route]`, and
`fastovms.commands` a function `(parser: ArgumentParser) -> Callable[[Namespace], int | None]`; the
entry point's name is the command's. docs/extensions.md has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError

ENDPOINTS: Final = "fastovms.endpoints"
COMMANDS: Final = "fastovms.commands"


class Extension(NamedTuple):
    """The function that an entry point names.

    Attributes:
        name: the entry point's name.
        value: where the function is, "package.module:function".
        function: the function itself.
    """

    name: str
    value: str
    function: Callable[..., Any]


def load_extensions(group: str, name: str | None = None) -> list[Extension]:
    """Imports and returns the extensions of a group, or the one of this name.

    Raises:
        ConfigurationError: one cannot be imported, or is not a function.
    """
    found = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    extensions = []
    for entry in sorted(found):
        try:
            function = entry.load()
        except Exception as error:
            raise failed(group, entry.name, entry.value, error) from error
        if not callable(function):
            raise ConfigurationError(f"{group}: {entry.name} ({entry.value}) is not a function")
        extensions.append(Extension(entry.name, entry.value, function))
    return extensions


def failed(group: str, name: str, value: str, error: Exception) -> ConfigurationError:
    """Returns the error that stops a start because of an extension."""
    return ConfigurationError(f"{group}: {name} ({value}): {type(error).__name__}: {error}")
