"""Functions that a plain chat does not need. Their modules are imported at the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Generic, ParamSpec, TypeVar

from fastovms.api.client_request import ClientRequest
from fastovms.api.request_schemas import GenerationFields
from fastovms.params import Grammar

P = ParamSpec("P")
R = TypeVar("R")


class Deferred(Generic[P, R]):
    """A function of a module that is imported at the first call.

    Args:
        where: "module:function" below `fastovms`.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._function: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._function is None:
            module, _, name = self.where.partition(":")
            self._function = getattr(import_module(f"fastovms.{module}"), name)
        return self._function(*args, **kwargs)


strict_schema: Final[Deferred[[Mapping[str, Any]], Mapping[str, Any]]] = Deferred(
    "grammar.json_schema:strict_schema"
)
enforceable_schema: Final[Deferred[[Mapping[str, Any]], tuple[Any, tuple[Any, ...]]]] = Deferred(
    "grammar.json_schema:enforceable_schema"
)
regex_of_lark: Final[Deferred[[str], str | None]] = Deferred("grammar.lark:regex_of_lark")
grammar_of: Final[Deferred[[ClientRequest[Any], list[str]], Grammar | None]] = Deferred(
    "api.structured:grammar_of"
)

CONSTRAINTS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The members of `structured_outputs`; `guided_` before them gives vLLM's older fields."""

_FIELDS: Final = (
    *(f"guided_{constraint}" for constraint in (*CONSTRAINTS, "whitespace_pattern")),
    *("structured_outputs", "json_schema", "grammar", "regex", "ebnf"),
)


def constraint_of(request: ClientRequest[GenerationFields], warnings: list[str]) -> Grammar | None:
    """Returns the constraint that a request asks for, not yet compiled; see
    `structured.grammar_of`."""
    body = request.body
    if request.response_format is None and all(
        getattr(body, name, None) is None for name in _FIELDS
    ):
        return None
    return grammar_of(request, warnings)
