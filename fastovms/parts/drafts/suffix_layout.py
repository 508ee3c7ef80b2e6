"""The memory layout of the suffix index: texts as trees in a ring of flat arrays.

An entry stands for a token and the tokens before it, and is found by hashes of its last few tokens.
For each number in `ORDERS`, entries with the same hash are chained from the newest to the oldest,
as in DEFLATE (RFC 1951, 4). Positions of entries only grow; position p is in row p modulo the
number of rows, so that the oldest entry is overwritten first. A link to an overwritten position is
invalid; 0 means no link.

A change of a number here needs a change of `suffix_kernels` too, because numba's cache notices only
changes of that file.
"""

from __future__ import annotations

from typing import Final

ORDERS: Final = (1, 2, 4, 8)
"""The numbers of last tokens that are hashed, longest first. A short suffix occurs too often for
all of its positions to be compared."""

TOKEN: Final = 0
SPACE: Final = 1
BEFORE: Final = 2
AFTER: Final = 3
CHAIN: Final = 4
"""The columns of an entry: its token, its text's space, and the positions of the preceding entry
and of the latest following one. From `CHAIN` on, for each order: the position of the next older
entry with the same hash."""

NUM_COLUMNS: Final = CHAIN + len(ORDERS)

MAX_MATCH: Final = 32
"""The maximum length of a match in tokens; a longer match predicts no better."""

MAX_CANDIDATES: Final = 32
"""The maximum number of earlier positions, newest first, that are compared with the end of a
text."""

NUM_LENGTHS: Final = 9
NUM_SUPPORTS: Final = 5
FORCED: Final = NUM_LENGTHS * NUM_SUPPORTS
NUM_KINDS: Final = FORCED + 1
"""The number of kinds of guesses. A kind is the length of the match, combined with the number of
candidates that agree or with a match at the followed position; tokens that a grammar forces are a
kind of their own."""
