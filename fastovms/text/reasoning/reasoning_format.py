"""Says what a format of reasoning consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastovms.text.scanning.headed_messages import MessageForm
from fastovms.text.scanning.parser_steps import Output
from fastovms.text.scanning.rules import Rules
from fastovms.text.scanning.scanner import Scanner, Steps

Parse = Callable[[Scanner, Output, bool], Steps[None]]
"""Reads an answer up to the end of its reasoning. The flag says whether the answer begins within
reasoning."""

WriteRules = Callable[[Rules, bool], str]
"""Writes the rules of reasoning; returns the expression of what comes before the answer. The flag:
it begins within reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How models of a family set their thoughts apart.

    Attributes:
        name: as `--reasoning-parser` takes it.
        tags: the markup. Those of them that are special tokens of the vocabulary must be kept in
            the decoded text.
        parse: finds the reasoning; or the form of messages that reasoning is a kind of.
        rules: writes what reasoning may be: it has to end before a constrained answer begins.
        begin: what opens reasoning. A prompt that ends with it leaves the answer within.
        end: what closes reasoning, where one text always does; else None.
        open_answer: writes the rules of the markup between reasoning and content, if there is any.
    """

    name: str
    tags: tuple[str, ...]
    parse: Parse | MessageForm
    rules: WriteRules
    begin: str
    end: str | None = None
    open_answer: Callable[[Rules], str] | None = None
