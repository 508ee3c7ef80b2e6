"""Declares what is played: sessions of turns, each of which has a prompt and a known answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastovms.params import Grammar


@dataclass(frozen=True)
class Turn:
    """One request and its answer.

    Attributes:
        prompt: token ids, all turns before included.
        answer: token ids; under a grammar the last one ends the text.
        grammar: what the answer follows, or None.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Session:
    """Turns of one user, played one after another."""

    turns: tuple[Turn, ...]

    def cut(self, num_tokens: int) -> Session:
        """Returns the session with so many tokens of each answer at most."""
        return Session(tuple(replace(turn, answer=turn.answer[:num_tokens]) for turn in self.turns))
