"""One prompt of a request, as the backend will get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastovms.params import SamplingParams, TextPrompt


class PromptTask(NamedTuple):
    """One prompt to continue. All prompts of a request ask for the same number of samples.

    Attributes:
        prompt: see `GenerationRequest`.
    """

    token_ids: Sequence[int]
    params: SamplingParams
    prompt: TextPrompt | None = None
