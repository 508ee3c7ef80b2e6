"""Edits: parts of a file in an older release are rewritten as in the newer one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from bench.replay.packages import Change, Package
from bench.replay.session import Session, Turn
from bench.replay.vocabulary import Vocabulary

NUM_LINES = 30
NUM_EDITS = 2
"""The number of successive edits of the same package."""


def edits(package: Package, vocabulary: Vocabulary) -> Iterator[Session]:
    """Yields sessions of `NUM_EDITS` changed parts."""
    changes = package.changes(NUM_LINES)
    while len(some := list(islice(changes, NUM_EDITS))) == NUM_EDITS:
        yield Session(tuple(_edit(change, vocabulary) for change in some))


def _edit(change: Change, vocabulary: Vocabulary) -> Turn:
    prompt = (
        f"user\nBring this part of {change.path} up to the newest release. "
        f"Write all of it.\n```python\n{change.old}```\nassistant\n"
    )
    return Turn(vocabulary.encode(prompt), vocabulary.encode(f"```python\n{change.new}```"))
