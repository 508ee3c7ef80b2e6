"""Declares what a format of reasoning consists of: its tags, its parser, its grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastovms.grammar_tree import EMPTY, Node
from fastovms.text.scanning.headed_messages import HeadedMessages
from fastovms.text.scanning.incremental_parser import PieceCollector
from fastovms.text.scanning.scanner import Incremental, Scanner

Parse = Callable[[Scanner, PieceCollector, bool], Incremental[None]]
"""Reads an answer up to the end of its reasoning. The flag says whether the answer begins within
reasoning."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How models of a family set their thoughts apart.

    Attributes:
        name: as `--reasoning-parser` takes it.
        tags: the markup. Those of them that are special tokens of the vocabulary must be kept in
            the decoded text.
        parse: finds the reasoning; or the form of messages that reasoning is a kind of.
        begin: what opens reasoning. A prompt that ends with it leaves the answer within.
        before_answer: the grammar of reasoning, which has to end before a constrained answer
            begins, or of none.
        rest: the same where the answer begins within reasoning.
        end: where answers begin within reasoning unless the prompt has ended it, with what; else
            None.
        open_answer: the grammar of the markup between reasoning and content.
    """

    name: str
    tags: tuple[str, ...]
    parse: Parse | HeadedMessages
    begin: str
    before_answer: Node
    rest: Node
    end: str | None = None
    open_answer: Node = EMPTY
