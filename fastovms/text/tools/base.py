"""What a tool is, and what a format of calls consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fastovms.text.scanner import Scanner, Steps
from fastovms.text.steps import Output


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of the arguments; empty = any object.
        strict: the arguments must follow the schema even if the model may choose to call.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    strict: bool = False


Parse = Callable[[Scanner, Output, Sequence[Tool]], Steps[None]]
"""Reads an answer, or what follows the reasoning in it, to its end."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How models of a family write their calls.

    Attributes:
        name: as `--tool-parser` takes it.
        tags: the markup. Those of them that are special tokens of the vocabulary must be kept in
            the decoded text.
        parse: finds the calls.
    """

    name: str
    tags: tuple[str, ...]
    parse: Parse
