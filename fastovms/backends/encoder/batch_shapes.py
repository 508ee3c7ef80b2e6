"""Says which shapes small batches of texts have: few ones, since the first batch of a shape costs
about as much again as a small batch does."""

from __future__ import annotations

from typing import Final

_SMALL: Final = 1024
"""Tokens of a batch from which on what a new shape costs is little beside the rest."""

_MIN_STEP: Final = 8

_SHARE_OF_STEP: Final = 8
"""Lengths are rounded up to steps of this part of them at most: about so little is padding."""


def padded_length(num_texts: int, longest: int, limit: int | None = None) -> int:
    """Returns how many tokens each row of a batch has.

    Args:
        limit: how many positions the model has.
    """
    if num_texts * longest >= _SMALL:
        return longest
    step = max(_MIN_STEP, _power_of_two(longest) // _SHARE_OF_STEP)
    length = -(-longest // step) * step
    return length if limit is None else max(longest, min(length, limit))


def num_rows(longest: int, max_tokens: int) -> int:
    """Returns how many texts a batch has at most: a power of two in a small one."""
    room = max(1, max_tokens // padded_length(1, longest))
    return room if room * longest >= _SMALL else _power_of_two(room)


def _power_of_two(number: int) -> int:
    """Returns the largest power of two that is no greater than a number."""
    return 1 << (max(1, number).bit_length() - 1)
