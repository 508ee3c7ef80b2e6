"""Declares what a format of reasoning consists of: its tags, its parser, its grammar."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.grammar_tree import EMPTY, Node
from fastovms.text.scanning.headed_messages import HeadedMessages

Tags = tuple[str, str]
"""A tag that begins something and one that ends it."""


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """How a family marks the thoughts in its answers.

    Attributes:
        pairs: the tags that a thought may stand between; where a prompt has begun it, the first
            pair. The beginning of one may be the beginning of another that stands before it.
        answer: the tags that the answer may stand between.
        anywhere: whether the tags are markup wherever they stand, alone too; else a thought comes
            first or not at all, and an answer between tags comes behind it.
    """

    pairs: tuple[Tags, ...]
    answer: Tags | None = None
    anywhere: bool = False


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
        aliases: names that other servers have for it.
        marks: sets of texts. A chat template that has all the texts of one of them knows thoughts
            of this format.
    """

    name: str
    tags: tuple[str, ...]
    parse: ThoughtTags | HeadedMessages
    begin: str
    before_answer: Node
    rest: Node
    end: str | None = None
    open_answer: Node = EMPTY
    aliases: tuple[str, ...] = ()
    marks: tuple[tuple[str, ...], ...] = ()

    def is_taught_by(self, template: str) -> bool:
        """Returns whether a chat template, given as its source, knows thoughts of this format."""
        return any(all(mark in template for mark in marks) for marks in self.marks)
