"""Declares the functions that the model may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fastovms.grammar_tree import Json
from fastovms.text.scanning.parameters import Parameters, find_parameters, parameters_of

_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of the arguments; empty = the function takes none.
        is_relaxed: whether the grammar leaves out what the model's format cannot say of them.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_relaxed: bool = False

    @cached_property
    def known_parameters(self) -> Parameters:
        """The parameters by name, as far as the schema declares them. They are read once: parsers
        need them at every call."""
        return find_parameters(self.parameters)

    def enforced_parameters(self) -> Parameters:
        """Returns the parameters for a grammar that writes them one by one. Raises InvalidField if
        they cannot be enforced so."""
        return parameters_of(self.parameters, self.name, is_relaxed=self.is_relaxed)

    @property
    def arguments(self) -> Json:
        """The grammar of the arguments as a JSON object."""
        return Json.of({**(self.parameters or _NO_PARAMETERS), "type": "object"})


@dataclass(frozen=True, slots=True)
class CallChoice:
    """The calls that a request lets the model make.

    Attributes:
        tools: the functions that may be called, at least one.
        required: whether the answer is calls and nothing else; else it may be text, with calls or
            without.
        parallel: whether there may be more than one call.
        strict: whether a call has to follow its function's schema wherever it stands.
    """

    tools: Sequence[Tool]
    required: bool = False
    parallel: bool = True
    strict: bool = False
