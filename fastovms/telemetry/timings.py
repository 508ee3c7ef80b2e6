"""Declares how long the phases of a sample took: what metrics, answers and traces tell of it."""

from __future__ import annotations

from typing import NamedTuple


class SampleTimings(NamedTuple):
    """The phases of one sample that has tokens, in seconds, as vLLM divides them.

    Attributes:
        queue: from its submission to the step that admitted its prompt.
        prefill: from there to its first token.
        decode: from its first token to its last.
        num_tokens: how many it has, as usage counts them.
    """

    queue: float
    prefill: float
    decode: float
    num_tokens: int

    @property
    def per_token(self) -> float | None:
        """The mean time between two tokens; None where there is only one."""
        return self.decode / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Its tokens by the time since it was admitted; None where that is not to be measured."""
        running = self.prefill + self.decode
        return self.num_tokens / running if running > 0 else None
