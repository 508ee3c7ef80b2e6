"""Draws the lengths and arrival times of a round's requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastovms.parts.load_test.command import RANDOM_TOKEN_IDS
from fastovms.parts.load_test.config import arrival_times

ARRIVALS = ("at-once", "bursts", "poisson")


class Request(NamedTuple):
    """A request of a round, and the seconds after the round's start at which it is sent."""

    prompt: list[int]
    num_output_tokens: int
    due: float


@dataclass(frozen=True, slots=True)
class LoadShape:
    """The parameters that the rounds of a load share. Each round draws new prompts.

    Attributes:
        num_requests: the number of requests of a round.
        prompt_lengths, output_lengths: the lengths of the requests in tokens, in turn.
        arrivals: one of `ARRIVALS`.
        rate: the mean requests per second; not used if all requests are sent at once.
        burst_size: the number of requests of a burst.
    """

    num_requests: int
    prompt_lengths: Sequence[int]
    output_lengths: Sequence[int]
    arrivals: str = "at-once"
    rate: float = float("inf")
    burst_size: int = 8

    def draw(self, rng: random.Random) -> list[Request]:
        return [
            Request(
                rng.choices(RANDOM_TOKEN_IDS, k=self.prompt_lengths[i % len(self.prompt_lengths)]),
                self.output_lengths[i % len(self.output_lengths)],
                due,
            )
            for i, due in enumerate(self._times(rng))
        ]

    def _times(self, rng: random.Random) -> list[float]:
        match self.arrivals:
            case "poisson":
                return arrival_times(self.num_requests, self.rate, 1.0, rng)
            case "bursts":
                num_bursts = -(-self.num_requests // self.burst_size)
                starts = arrival_times(num_bursts, self.rate / self.burst_size, 1.0, rng)
                times = [start for start in starts for _ in range(self.burst_size)]
                return times[: self.num_requests]
        return [0.0] * self.num_requests

    @property
    def name(self) -> str:
        """Returns the first cell of its table rows."""
        if self.arrivals == "at-once":
            return f"{self.num_requests} at once"
        of_bursts = f", in bursts of {self.burst_size}" if self.arrivals == "bursts" else ""
        return f"{self.num_requests} at {self.rate:g} a second{of_bursts}"
