"""Names a tool as its client does, and as the one function that the model sees for it."""

from __future__ import annotations

from typing import NamedTuple


class ToolTarget(NamedTuple):
    """A tool as its client knows it.

    Attributes:
        namespace: the one that it is in; None = none.
        is_custom: whether it takes text in place of arguments.
    """

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def function(self) -> str:
        """The name of the function that the model calls."""
        return flat_name(self.name, self.namespace)


def flat_name(name: str, namespace: str | None) -> str:
    """Returns the one name of a function in a namespace, as Codex makes it where it has to. A
    function at the top may have its own name as its namespace in the history (openai 3.54)."""
    if not namespace or namespace == name:
        return name
    has_gap = namespace.endswith("_") or name.startswith("_")
    return f"{namespace}{name}" if has_gap else f"{namespace}__{name}"
