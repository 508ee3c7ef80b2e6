"""Prompts with known texts, and the texts that a server has returned for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bench.endurance.completions import Completion, Ending, complete_all
from bench.endurance.server import MODEL, ServerUnderTest

FLAGS: Final = ("--precision", "exact", "--cache-size", "0.1", "--no-tune")
"""Parameters with which a text depends on its prompt alone."""

_TOKEN_IDS: Final = (5, 500)
_NUM_STEMS: Final = 6
_STEM_TOKENS: Final = 256
_END_TOKENS: Final = (40, 400)
"""The least and greatest number of tokens of a prompt after its common prefix."""
_MAX_TOKENS: Final = 12
_CROWD: Final = 16
"""The number of concurrent requests."""


def make_prompts(number: int, random: Random) -> list[tuple[int, ...]]:
    """Returns prompts, some of which have a common prefix."""

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(random.randint(*_TOKEN_IDS) for _ in range(count))

    stems = [tokens(_STEM_TOKENS) for _ in range(_NUM_STEMS)]
    return [random.choice(stems) + tokens(random.randint(*_END_TOKENS)) for _ in range(number)]


@dataclass(slots=True)
class Answers:
    """The answers of servers.

    Attributes:
        num_whole: complete answers.
        num_lost: incomplete answers of servers that were killed.
        other_texts, errors: descriptions of the wrong answers.
    """

    num_whole: int = 0
    num_lost: int = 0
    other_texts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def is_wrong(self) -> bool:
        return bool(self.other_texts or self.errors)


class KnownTexts:
    """Prompts with the texts that a server without a prefix cache has generated."""

    def __init__(self, texts: Mapping[tuple[int, ...], str]) -> None:
        self._texts = texts
        self.prompts = list(texts)

    def ask(self, server: ServerUnderTest, answers: Answers) -> None:
        """Sends all prompts to a server and records its answers."""
        self.check(zip(self.prompts, _ask(server, self.prompts), strict=True), answers)

    def check(self, endings: Iterable[tuple[tuple[int, ...], Ending]], answers: Answers) -> None:
        """Records the outcomes of requests."""
        for prompt, ending in endings:
            if ending.status == 0:
                answers.num_lost += 1
            elif not ending.is_good:
                answers.errors.append(f"{ending.status}: {ending.error}")
            else:
                answers.num_whole += 1
                if ending.text != self._texts[prompt]:
                    answers.other_texts.append(f"{ending.text!r}, not {self._texts[prompt]!r}")


def completion(prompt: Sequence[int], *, stream: bool = False) -> Completion:
    return Completion(prompt, _MAX_TOKENS, stream)


def learn_texts(directory: Path, number: int, random: Random) -> KnownTexts:
    """Creates prompts and requests their texts from a server without a prefix cache.

    Raises:
        SystemExit: the server does not answer.
    """
    prompts = make_prompts(number, random)
    flags = (*FLAGS, "--prefix-cache-disk-size", "0", "--no-enable-prefix-caching")
    server = ServerUnderTest(flags, directory)
    server.start()
    try:
        endings = _ask(server, prompts)
    finally:
        server.kill()
    if not all(ending.is_good for ending in endings):
        raise SystemExit(f"there is nothing to compare with: {endings}")
    return KnownTexts({prompt: e.text for prompt, e in zip(prompts, endings, strict=True)})


def _ask(server: ServerUnderTest, prompts: Sequence[tuple[int, ...]]) -> list[Ending]:
    endings: list[Ending] = []
    for first in range(0, len(prompts), _CROWD):
        crowd = [completion(prompt) for prompt in prompts[first : first + _CROWD]]
        endings += complete_all(server.url, MODEL, crowd)
    return endings
