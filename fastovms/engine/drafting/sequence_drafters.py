"""Remembers which drafters one sequence has."""

from __future__ import annotations

from dataclasses import dataclass

from fastovms.engine.drafting.draft_policy import DraftPolicy
from fastovms.engine.drafting.prompt_lookup import PromptLookup


@dataclass(slots=True)
class SequenceDrafters:
    """The drafters of one sequence, beside its grammar.

    Attributes:
        prompt_lookup: guesses from the text so far, or None.
        model_policy: says how much the draft model guesses where prompt lookup does not, or None.
        drafted_by: the policy that learns how much of the last guess was right, or None.
    """

    prompt_lookup: PromptLookup | None = None
    model_policy: DraftPolicy | None = None
    drafted_by: DraftPolicy | None = None
