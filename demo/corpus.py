"""The demo corpus: endless seeded conversations by category, with held-out combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from zlib import crc32

from demo import samples, turns
from demo.samples import Sample, single

HELD_OUT_SHARE = 10  # one combination in ten is never trained on

# Category: its share of the training samples and its generator.
CATEGORIES: dict[str, tuple[float, Callable[[random.Random], Sample]]] = {
    "greeting": (4, single(turns.greeting)),
    "identity": (3, single(turns.identity)),
    "capital": (6, single(samples.capital_either_way)),
    "sum": (5, single(turns.addition)),
    "counting": (6, single(turns.counting)),
    "echo": (6, single(turns.echo)),
    "beyond": (4, single(samples.beyond)),
    "story": (4, single(turns.tale)),
    "plain text": (5, samples.plain_text),
    "json": (14, samples.json_answer),
    "tool call": (27, samples.tool_call),
    "no fitting tool": (24, samples.no_tool),
    "tool result": (9, samples.tool_result),
    "thinking": (17, samples.thinking),
    "multi-turn": (8, samples.multi_turn),
    "long chat": (4, samples.long_chat),
}


def held_out(sample: Sample) -> bool:
    """Whether the sample's combination is kept from training; inexact answers never are."""
    return sample.exact and crc32(sample.key.encode()) % HELD_OUT_SHARE == 0


def draw(rng: random.Random, category: str, unseen: bool) -> Sample:
    """A sample of `category` to train on, or with `unseen` one to judge the model by."""
    make = CATEGORIES[category][1]
    while held_out(sample := make(rng)) != unseen:
        pass
    return sample


def training_samples(rng: random.Random) -> Iterator[Sample]:
    """Samples of all categories by their shares, without end, none of them held out."""
    names = list(CATEGORIES)
    shares = [CATEGORIES[name][0] for name in names]
    while True:
        yield draw(rng, rng.choices(names, shares)[0], unseen=False)
