"""Builds the sessions of each kind of text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from bench.replay.agent_loops import agent_loops
from bench.replay.chats import chats, kept_chats
from bench.replay.edits import edits
from bench.replay.extraction import extraction
from bench.replay.packages import Package, fetch_packages
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import Vocabulary

_RANDOM_PROMPT: Final = 128
_RANDOM_ANSWER: Final = 256


@dataclass(frozen=True)
class Data:
    """The sources of the texts."""

    packages: list[Package]
    vocabulary: Vocabulary
    chats: list[list[str]]

    @classmethod
    def kept(cls, directory: Path) -> Data:
        """Reads the sources in a directory; missing ones are generated or downloaded."""
        packages = fetch_packages(directory)
        texts = [text for package in packages for text in package.old.values()]
        vocabulary = Vocabulary.kept(directory / "tokenizer.json", texts)
        return cls(packages, vocabulary, kept_chats(directory / "chats.json"))


def _edits(data: Data) -> Iterator[Session]:
    return _in_turn(edits(package, data.vocabulary) for package in data.packages)


def _extraction(data: Data) -> Iterator[Session]:
    return _in_turn(extraction(package, data.vocabulary) for package in data.packages)


def _extraction_with_grammar(data: Data) -> Iterator[Session]:
    return _in_turn(
        extraction(package, data.vocabulary, with_grammar=True) for package in data.packages
    )


def _agent_loops(data: Data) -> Iterator[Session]:
    thoughts = list(dict.fromkeys(text for package in data.packages for text in package.sentences))
    random.Random(0).shuffle(thoughts)
    waiting = iter(thoughts)
    return _in_turn(agent_loops(package, data.vocabulary, waiting) for package in data.packages)


def _in_turn(parts: Iterable[Iterator[Session]]) -> Iterator[Session]:
    """Yields a session of each part in turn."""
    for some in zip_longest(*parts):
        yield from (session for session in some if session is not None)


def _chats(data: Data) -> Iterator[Session]:
    return chats(data.chats, data.vocabulary)


def _random(data: Data) -> Iterator[Session]:
    numbers = random.Random(0)
    while True:
        prompt, answer = (
            tuple(numbers.randrange(1, data.vocabulary.num_token_ids) for _ in range(length))
            for length in (_RANDOM_PROMPT, _RANDOM_ANSWER)
        )
        yield Session((Turn(prompt, answer),))


KINDS: Final[dict[str, Callable[[Data], Iterator[Session]]]] = {
    "edits": _edits,
    "extraction": _extraction,
    "extraction-grammar": _extraction_with_grammar,
    "agents": _agent_loops,
    "chats": _chats,
    "random": _random,
}
