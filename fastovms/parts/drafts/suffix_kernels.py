"""Compiled kernels that add texts to the suffix index and find earlier continuations of their
suffixes.

Importing the module compiles the kernels, or loads the compiled code; see `suffix_index`.
"""

# Numba's signatures declare the types.

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.jit import inlined, kernel
from fastovms.parts.drafts.suffix_layout import (
    AFTER,
    BEFORE,
    CHAIN,
    MAX_CANDIDATES,
    MAX_MATCH,
    NUM_SUPPORTS,
    ORDERS,
    SPACE,
    TOKEN,
)

_MAX_TWINS = 16
"""The maximum number of entries that are compared to find an equal one to share."""

_OWN_WEIGHT = 4.0
"""The number of observations in one text that weigh as much as those in all texts of its space."""

_OWN_DECAY = 0.95
_DECAY = 0.995
"""The factor by which the weight of past observations decays with each new one."""

_NEAR = 64
"""The number of entries after the followed position that are searched for the text's new position.
A text that copies another with small changes returns to it after a few tokens; such short matches
cannot be found by their hash."""

_FOLLOWED_MATCH = 4
"""The minimum length of a match after which a text counts as following that position."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ORDERS = np.array(ORDERS)


@inlined
def _bucket(tokens, end, order, space, seed, mask):
    """Returns the hash bucket of the last tokens before `end`, at most `order` tokens."""
    state = seed ^ np.uint64(space)
    for i in range(max(0, end - order), end):
        state = (state ^ np.uint64(tokens[i])) * _GOLDEN
        state ^= state >> np.uint64(29)
    return np.int64(state & mask)


@kernel(
    "int64(int32[:, ::1], int32[:, ::1], int64, uint64, int64[::1], int64[::1], int64, boolean)"
)
def extend(
    entries: NDArray[np.int32],
    heads: NDArray[np.int32],
    end: int,
    seed: int,
    place: NDArray[np.int64],
    tokens: NDArray[np.int64],
    first: int,
    shares: bool,
) -> int:
    """Adds tokens to a text and returns the new end.

    Args:
        entries: int32 [N, NUM_COLUMNS].
        heads: int32 [len(ORDERS), a power of two], the newest entry of each hash bucket.
        end: the position of the next entry.
        seed: 64 random bits.
        place: the number of the text's space, the position of its last entry, which is updated, and
            the position in another text that it follows (see `look_up`).
        tokens: as many of the text's last tokens as the longest order, and, from `first` on, the
            tokens to add.
        shares: whether to reuse existing equal entries instead of adding new ones.
    """
    capacity = entries.shape[0]
    mask = np.uint64(heads.shape[1] - 1)
    space, at = place[0], place[1]
    buckets = np.empty(_ORDERS.size, np.int64)
    for i in range(first, tokens.size):
        # The entries are a ring. If the text's last entry has been overwritten, its next one is
        # stored without a predecessor, and matches of the text end there.
        if at < end - capacity or at >= end:
            at = 0
        for level in range(_ORDERS.size):
            buckets[level] = _bucket(tokens, i + 1, _ORDERS[level], space, seed, mask)
        found = np.int64(0)
        # Prompts with a common beginning would fill the ring with copies of it. An entry is the
        # same only if its predecessor is too, so that both texts have the same tokens before it.
        if shares:
            level = _ORDERS.size - 1
            other = np.int64(heads[level, buckets[level]])
            for _ in range(_MAX_TWINS):
                if other < max(1, end - capacity):
                    break
                entry = entries[other % capacity]
                if entry[TOKEN] == tokens[i] and entry[SPACE] == space and entry[BEFORE] == at:
                    found = other
                    break
                other = np.int64(entry[CHAIN + level])
        if found == 0:
            found = np.int64(end)
            end += 1
            if at < end - capacity:  # the new entry has overwritten its predecessor
                at = 0
            entry = entries[found % capacity]
            entry[TOKEN] = tokens[i]
            entry[SPACE] = space
            entry[BEFORE] = at
            entry[AFTER] = 0
            for level in range(_ORDERS.size):
                entry[CHAIN + level] = heads[level, buckets[level]]
                heads[level, buckets[level]] = found
        if at > 0:
            # A shared entry keeps one successor, the newest: recent text is the best prediction.
            entries[at % capacity, AFTER] = found
        at = found
    place[1] = at
    return end


@inlined
def _match_length(entries, oldest, space, position, context):
    """Returns the number of tokens up to an entry that equal the last tokens of `context`."""
    length = 0
    while length < min(context.size, MAX_MATCH) and position >= oldest:
        entry = entries[position % entries.shape[0]]
        if entry[TOKEN] != context[context.size - 1 - length] or entry[SPACE] != space:
            break
        length += 1
        position = np.int64(entry[BEFORE])
    return length


@inlined
def _size_of(length):
    if length > 4:
        return 4 + (length > 6) + (length > 9) + (length > 15) + (length > 31)
    return length - 1


@inlined
def near_kind(length):
    """Returns the kind of a guess that continues at the position that the text already follows."""
    return _size_of(length) * NUM_SUPPORTS + 4


@inlined
def kind_of(length, votes, num_voters):
    """Returns the kind of a guess from a match of `length` tokens on which `votes` of `num_voters`
    candidates agree."""
    size = _size_of(length)
    support = 3
    if num_voters == 1:
        support = 2
    elif votes < num_voters:
        support = 1 if 2 * votes >= num_voters else 0
    return size * NUM_SUPPORTS + support


@inlined
def _odds_of(odds, own, kind):
    general = odds[0, kind] / odds[1, kind]
    return (own[0, kind] + _OWN_WEIGHT * general) / (own[1, kind] + _OWN_WEIGHT)


@inlined
def _after(entries, position):
    return np.int64(entries[position % entries.shape[0], AFTER])


@inlined
def _near(entries, oldest, end, space, anchor, context):
    """Returns the position and the length of the longest match near the position that the text
    already follows."""
    found, longest = np.int64(0), 0
    position = anchor
    for _ in range(_NEAR):
        if position < oldest or position >= end or _after(entries, position) == 0:
            break
        length = _match_length(entries, oldest, space, position, context)
        if length > longest:
            found, longest = position, length
        position = _after(entries, position)
    return found, longest


@kernel(
    "int64(int32[:, ::1], int32[:, ::1], int64, uint64, int64[::1], int64[::1], "
    "float64[:, ::1], float64[:, ::1], float64, float64, int64[::1], float64[::1], int64[::1])"
)
def look_up(
    entries: NDArray[np.int32],
    heads: NDArray[np.int32],
    end: int,
    seed: int,
    place: NDArray[np.int64],
    context: NDArray[np.int64],
    odds: NDArray[np.float64],
    own: NDArray[np.float64],
    chance: float,
    least: float,
    tokens: NDArray[np.int64],
    chances: NDArray[np.float64],
    kinds: NDArray[np.int64],
) -> int:
    """Guesses the tokens that follow a text, returns their number, and updates the followed
    position. The guess is the most frequent continuation of the longest suffix that occurred
    before, or the continuation at the followed position if that match is as long or more likely.

    Args:
        entries, heads, end, seed, place: as in `extend`.
        context: the last tokens of the text, at most `MAX_MATCH`.
        odds, own: f64 [2, NUM_KINDS], how many guesses of each kind were correct and how many were
            made, in the text's space and in this text.
        chance: the probability that the text reaches the end of the context.
        least: the guess ends before its probability falls to this value, but has at least one
            token, so that the statistics are updated.
        tokens, chances, kinds: outputs [N]: the guessed tokens, the probability that each and all
            before it are correct, and their kinds.
    """
    capacity = entries.shape[0]
    oldest = max(1, end - capacity)
    mask = np.uint64(heads.shape[1] - 1)
    space, at = place[0], place[1]
    starts = np.empty(MAX_CANDIDATES, np.int64)
    count, longest = 0, 0
    # From the longest order to the shortest: a shorter suffix occurs more often, but predicts
    # worse, so the first order with a match decides. The number of entries to check is bounded,
    # and hashes may collide, so every candidate is compared token by token.
    for level in range(_ORDERS.size - 1, -1, -1):
        order = _ORDERS[level]
        if context.size < order:
            continue
        other = np.int64(heads[level, _bucket(context, context.size, order, space, seed, mask)])
        for _ in range(MAX_CANDIDATES):
            if other < oldest:
                break
            if _after(entries, other) > 0:  # the end of a text predicts nothing
                length = _match_length(entries, oldest, space, other, context)
                if length >= order and length >= longest:
                    count = count if length == longest else 0
                    starts[count] = other
                    count += 1
                    longest = length
            other = np.int64(entries[other % capacity, CHAIN + level])
        if count:
            break
    near, near_length = _near(entries, oldest, end, space, place[2], context)
    is_near = near_length > 0 and near_length >= longest
    # A copied text is likely to continue where it was, even if the match there is shorter. The
    # measured success of both kinds of guesses decides.
    if 0 < near_length < longest:
        if_all_agree = _odds_of(odds, own, kind_of(longest, count, count))
        is_near = _odds_of(odds, own, near_kind(near_length)) > if_all_agree
    if is_near:
        starts[0], count, longest = near, 1, near_length
    if is_near or longest >= _FOLLOWED_MATCH:
        place[2] = starts[0]
    places = starts.copy()
    for i in range(tokens.size):
        # A candidate that reaches the end of this text restarts at its own beginning: a text that
        # repeats itself is assumed to repeat again.
        num_voters = 0
        for k in range(count):
            follower = _after(entries, places[k])
            if follower == 0 and places[k] == at:
                follower = _after(entries, starts[k])
            if follower >= oldest:
                starts[num_voters] = starts[k]
                places[num_voters] = follower
                num_voters += 1
        # The candidates vote on the next token. Each token is counted once, at its first voter.
        best, most = np.int32(-1), 0
        for k in range(num_voters):
            token = entries[places[k] % capacity, TOKEN]
            votes = 0
            if token != best:
                for j in range(k, num_voters):
                    votes += entries[places[j] % capacity, TOKEN] == token
            if votes > most:
                best, most = token, votes
        if most == 0:
            return i
        kind = near_kind(longest + i) if is_near else kind_of(longest + i, most, num_voters)
        chance *= _odds_of(odds, own, kind)
        if chance < least and i > 0:
            return i
        tokens[i], chances[i], kinds[i] = best, chance, kind
        # Candidates that disagree are dropped, so that the guess never mixes two texts.
        count = 0
        for k in range(num_voters):
            if entries[places[k] % capacity, TOKEN] == best:
                starts[count] = starts[k]
                places[count] = places[k]
                count += 1
    return tokens.size


@kernel("void(float64[:, ::1], float64[:, ::1], int64[::1], int64[::1], int64[::1])")
def learn(
    odds: NDArray[np.float64],
    own: NDArray[np.float64],
    guessed: NDArray[np.int64],
    kinds: NDArray[np.int64],
    actual: NDArray[np.int64],
) -> None:
    """Compares a guess with the actual tokens up to the first wrong one, and updates the statistics
    of its kinds.

    Args:
        odds, own: f64 [2, NUM_KINDS], updated; see `look_up`.
        guessed, kinds: int64 [N], the guessed tokens and their kinds.
        actual: int64 [M], the tokens that were generated.
    """
    for i in range(min(guessed.size, actual.size)):
        kind = kinds[i]
        is_right = guessed[i] == actual[i]
        odds[0, kind] = odds[0, kind] * _DECAY + is_right
        odds[1, kind] = odds[1, kind] * _DECAY + 1.0
        own[0, kind] = own[0, kind] * _OWN_DECAY + is_right
        own[1, kind] = own[1, kind] * _OWN_DECAY + 1.0
        if not is_right:
            break
