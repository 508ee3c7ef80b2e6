"""Sessions of turns, each of which has a prompt and a known answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastovms.params import Grammar


@dataclass(frozen=True)
class Turn:
    """A request and its answer.

    Attributes:
        prompt: token ids, including those of all turns before.
        answer: token ids; under a grammar, the last one ends the text.
        grammar: the grammar of the answer, or None.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Session:
    """The turns of one user, which run one after another."""

    turns: tuple[Turn, ...]

    def cut(self, num_tokens: int) -> Session:
        """Returns the session with at most the given number of tokens of each answer."""
        return Session(tuple(replace(turn, answer=turn.answer[:num_tokens]) for turn in self.turns))
