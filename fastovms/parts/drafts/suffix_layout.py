"""Describes how the suffix index stores texts, as trees in a ring of flat arrays.

An entry is a token with its preceding tokens, and is found by hashes of its last few tokens. For
each number of `ORDERS`, entries of one hash are chained from the newest to the oldest, as in
DEFLATE (RFC 1951 4). Entries have positions that only grow; position p is in row p modulo their
number, so that the oldest is overwritten first. A link to an overwritten position is invalid; 0
means no link.

A change of a number here needs a change of `suffix_kernels` too: numba's cache only notices changes
of that file.
"""

from __future__ import annotations

from typing import Final

ORDERS: Final = (1, 2, 4, 8)
"""The numbers of last tokens that are hashed, the largest first: a short suffix occurs too often
for all of its positions to be checked."""

TOKEN: Final = 0
SPACE: Final = 1
BEFORE: Final = 2
AFTER: Final = 3
CHAIN: Final = 4
"""The columns of an entry: its token, the space of its text, and the positions of the entry before
it and of the latest one after it. From `CHAIN` on: for each order, the position of the entry before
it in its chain."""

NUM_COLUMNS: Final = CHAIN + len(ORDERS)

MAX_MATCH: Final = 32
"""The maximum length of a match, in tokens: a longer match predicts no better."""

MAX_CANDIDATES: Final = 32
"""The number of earlier positions, the newest first, that are compared with the end of a text."""

NUM_LENGTHS: Final = 9
NUM_SUPPORTS: Final = 5
FORCED: Final = NUM_LENGTHS * NUM_SUPPORTS
NUM_KINDS: Final = FORCED + 1
"""Kinds of guesses: by how long the match is, and how many of the candidates agree or whether the
match is at the place that the text has followed; and those that a grammar leaves no choice about.
"""
