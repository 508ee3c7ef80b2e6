"""Estimates what trees of drafts would gain over chains, from measured costs of rows.

    python -m bench.replay.tree_drafts --data DIR

No model runs. The texts of `bench.replay` are played one after another. An index counts what has
followed each context; how often its first, second and third continuation are right is learned as
the texts are played. A chain takes the likeliest continuation at each token, a tree the likeliest
ones of all. Both have as many tokens as give the most expected tokens a second, and the text says
how many are accepted. So the difference is that of the shapes.
"""

from __future__ import annotations

import argparse
import heapq
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.common.report import table
from bench.replay.kinds import KINDS, Data
from bench.replay.session import Session

MEASURED_ROWS: Final = (1, 2, 4, 8)
COSTS: Final = {
    "kernels, 16 bits": (4.9, 5.4, 7.2, 13.1),
    "kernels, VNNI": (5.1, 5.1, 5.8, 9.0),
    "OpenVINO": (10.9, 13.2, 16.8, 22.1),
}
"""Milliseconds of a step of SmolLM2-135M with these numbers of rows. Steps of more rows are
OpenVINO's, whose rows beyond are as costly as those before."""

CONTEXTS: Final = (16, 12, 8, 6, 4, 3, 2, 1)
MAX_CHILDREN: Final = 3
MAX_DRAFTS: Final = 31
LEAST_CHANCE: Final = 0.02
_PRIOR: Final = 4.0
HEADER: Final = ("text", "costs", "chain", "tree", "tree / chain", "drafts, chain", "drafts, tree")

Tokens = tuple[int, ...]
Bucket = tuple[int, int, int, int]


class Child(NamedTuple):
    """A token that may follow, and the kind of guess that it is."""

    token_id: int
    bucket: Bucket


class Index:
    """What has followed contexts, and how often guesses of a kind were right."""

    def __init__(self) -> None:
        self._counts: dict[Tokens, dict[int, int]] = defaultdict(dict)
        self._right: dict[Bucket, float] = {}
        self._made: dict[Bucket, float] = {}

    def extend(self, text: Tokens, start: int) -> None:
        """Adds the tokens of a text from a position on."""
        for position in range(max(1, start), len(text)):
            for length in CONTEXTS:
                if length <= position:
                    counts = self._counts[text[position - length : position]]
                    count = counts.pop(text[position], 0)
                    counts[text[position]] = count + 1  # the last one is the latest

    def children(self, context: Tokens) -> list[Child]:
        """Returns what has followed the longest known end of a context, most often first."""
        for length in CONTEXTS:
            counts = self._counts.get(context[-length:]) if length <= len(context) else None
            if counts:
                total = sum(counts.values())
                found = list(counts.items())
                found.reverse()  # of equal counts the latest goes first
                found.sort(key=lambda item: -item[1])
                return [
                    Child(token_id, (length, min(total, 4), rank, 4 * count // total))
                    for rank, (token_id, count) in enumerate(found[:MAX_CHILDREN])
                ]
        return []

    def chance(self, bucket: Bucket) -> float:
        share = (bucket[3] + 0.5) / 5
        made = self._made.get(bucket, 0.0)
        return (self._right.get(bucket, 0.0) + _PRIOR * share) / (made + _PRIOR)

    def learn(self, context: Tokens, token_id: int) -> None:
        """Compares what the index says of a context with the token that came."""
        for child in self.children(context):
            bucket = child.bucket
            self._made[bucket] = self._made.get(bucket, 0.0) + 1
            self._right[bucket] = self._right.get(bucket, 0.0) + (child.token_id == token_id)


def seconds(costs: tuple[float, ...], num_rows: int) -> float:
    """Returns the time of a step."""
    if num_rows <= MEASURED_ROWS[-1]:
        return float(np.interp(num_rows, MEASURED_ROWS, costs)) / 1e3
    plain = COSTS["OpenVINO"]
    slope = (plain[-1] - plain[-2]) / (MEASURED_ROWS[-1] - MEASURED_ROWS[-2])
    return (plain[-1] + slope * (num_rows - MEASURED_ROWS[-1])) / 1e3


def drafted(index: Index, context: Tokens, costs: tuple[float, ...], width: int) -> set[Tokens]:
    """Returns the paths of the drafted tokens: the likeliest ones, as many as pay."""
    order: list[Tokens] = []
    waiting: list[tuple[float, Tokens]] = [(-1.0, ())]
    best, best_rate, gain = 0, 1 / seconds(costs, 1), 0.0
    while waiting and len(order) <= MAX_DRAFTS:
        chance, path = heapq.heappop(waiting)
        if path:
            order.append(path)
            gain -= chance
            rate = (1 + gain) / seconds(costs, 1 + len(order))
            if rate > best_rate:
                best, best_rate = len(order), rate
        for child in index.children((context + path)[-CONTEXTS[0] :])[:width]:
            likely = chance * index.chance(child.bucket)
            if -likely >= LEAST_CHANCE:
                heapq.heappush(waiting, (likely, (*path, child.token_id)))
    return set(order[:best])


def play(sessions: Iterable[Session], costs: tuple[float, ...], width: int) -> tuple[float, float]:
    """Returns tokens a second, and drafted tokens a step; without drafts where `width` is 0."""
    index = Index()
    time, num_tokens, num_steps, num_drafts = 0.0, 0, 0, 0
    for session in sessions:
        known: Tokens = ()
        for turn in session.turns:
            start = len(known) if turn.prompt[: len(known)] == known else 0
            index.extend(turn.prompt, start)
            known = turn.prompt + turn.answer
            position = len(turn.prompt)
            while position < len(known):
                paths = drafted(index, known[:position][-CONTEXTS[0] :], costs, width)
                end = position
                while end < len(known) - 1 and known[position : end + 1] in paths:
                    end += 1
                for at in range(position, end + 1):
                    index.learn(known[max(0, at - CONTEXTS[0]) : at], known[at])
                index.extend(known[: end + 1], position)
                time += seconds(costs, 1 + len(paths))
                num_tokens += end + 1 - position
                num_steps += 1
                num_drafts += len(paths)
                position = end + 1
    return num_tokens / time, num_drafts / num_steps


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.replay.tree_drafts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("-k", "--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("-s", "--sessions", type=int, default=16, help="of each kind")
    parser.add_argument("-g", "--output-tokens", type=int, default=512, help="at most, of a turn")
    chosen = parser.parse_args()
    data = Data.kept(chosen.data)
    for kind in chosen.kinds:
        sessions = [
            session.cut(chosen.output_tokens)
            for session in islice(KINDS[kind](data), chosen.sessions)
        ]
        rows: list[list[object]] = []
        for name, costs in COSTS.items():
            plain = 1 / seconds(costs, 1)
            chain, num_chain = play(sessions, costs, 1)
            tree, num_tree = play(sessions, costs, MAX_CHILDREN)
            rows.append(
                [kind, name, chain / plain, tree / plain, tree / chain, num_chain, num_tree]
            )
        print(table(HEADER, rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
