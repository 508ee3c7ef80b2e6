"""Holds when things happened to the requests of a load."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from fastovms.client.event_stream import DONE
from fastovms.client.request_failed import RequestFailed
from fastovms.client.stream_event import read_event


@dataclass(slots=True)
class Timeline:
    """When one stream's output arrived, in seconds of one clock.

    Attributes:
        started: when the request was sent, over a connection that was open.
        arrivals: of each event that brought output. Events that were read at once have one time.
        prompt_tokens, completion_tokens: as the server counts them; None = it does not say.
        failure: why there is no whole answer.
        ended: when it was over, however it ended; None = that is not known.
    """

    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    failure: RequestFailed | None = None
    ended: float | None = None

    @property
    def last(self) -> float:
        """The last that is known of it: its end, its last output, or its start."""
        if self.ended is not None:
            return self.ended
        return self.arrivals[-1] if self.arrivals else self.started

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def latency(self) -> float:
        """Seconds up to the last output."""
        return self.arrivals[-1] - self.started

    @property
    def num_tokens(self) -> int:
        """Output tokens; where the server does not count them, one an event."""
        tokens = self.completion_tokens
        return len(self.arrivals) if tokens is None else tokens

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds for each token but the first; None = there is no other."""
        later_tokens = self.num_tokens - 1
        return (self.arrivals[-1] - self.arrivals[0]) / later_tokens if later_tokens > 0 else None

    def record(self, data: bytes, now: float) -> None:
        """Takes the data of an event that was read at `now`.

        Raises:
            RequestFailed: the event tells of an error.
        """
        if data == DONE:
            return
        event = read_event(data)
        for choice in event.choices:
            if choice.brings_output:
                self.arrivals.append(now)
                break
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt_tokens
            self.completion_tokens = event.usage.completion_tokens


class Load(NamedTuple):
    """What requests came to that ran together.

    Attributes:
        seconds: from the start of the first request to the end of the last one, also of those that
            have failed: a server that lets most of them hang is not the faster for it.
    """

    seconds: float
    timelines: list[Timeline]

    @classmethod
    def of(cls, timelines: list[Timeline]) -> Load:
        first = min((timeline.started for timeline in timelines), default=0.0)
        last = max((timeline.last for timeline in timelines), default=first)
        return cls(last - first, timelines)

    @property
    def num_tokens(self) -> int:
        return sum(timeline.num_tokens for timeline in self.timelines)

    @property
    def num_events(self) -> int:
        return sum(len(timeline.arrivals) for timeline in self.timelines)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0
