"""Says what is wrong with a grammar that a client has written."""

from __future__ import annotations

from typing import Final

from fastovms.errors import InvalidField
from fastovms.params import Grammar, Refusal

_REGEX_DRAWN: Final = "regex parse error:"
_WRONG_REGEX: Final = "error: "


def dead_end(grammar: Grammar, error: str) -> Refusal:
    """Returns the error that no sample of a grammar can be finished, which only trying could
    tell."""
    return Refusal(
        f"{grammar.param}: the {grammar.kind.value} cannot go on: {error}", param=grammar.param
    )


class UnusableGrammar(InvalidField):
    """A grammar that is malformed or impossible.

    Attributes:
        reason: what is wrong with it.
        is_certain: whether that would be found again.
    """

    def __init__(self, grammar: Grammar, reason: str, *, is_certain: bool = True) -> None:
        message = f"the {grammar.kind.value} cannot be used: {reason}"
        super().__init__(message, param=grammar.param)
        self.reason = reason
        self.is_certain = is_certain


class UnfinishableGrammar(UnusableGrammar):
    """A grammar that can be compiled, but not followed. With other tokens perhaps it can."""


def first_line(error: str) -> str:
    """Returns the first line of a message: the parser's state and the whole grammar follow. What is
    wrong with a regular expression stands below a drawing of it."""
    lines = error.strip().splitlines() or ["unknown error"]
    found = [line for line in lines if line.startswith(_WRONG_REGEX)]
    if not found or not lines[0].endswith(_REGEX_DRAWN):
        return lines[0]
    place = lines[0].removesuffix(_REGEX_DRAWN).rstrip(": ") or "invalid regex"
    return f"{found[-1].removeprefix(_WRONG_REGEX)} ({place})"
