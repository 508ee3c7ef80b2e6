"""Decides who drafts for which sequence: its grammar, its own text, or the draft model."""

from __future__ import annotations

from array import array

from fastovms.backend_stats import EngineCounters
from fastovms.engine.drafting.draft_model import DraftModel, WantedDraft
from fastovms.engine.drafting.prompt_lookup import PromptLookup
from fastovms.engine.drafting.sequence_drafters import SequenceDrafters
from fastovms.engine.scheduling.sequence import Sequence
from fastovms.params import MAX_DRAFT_TOKENS


class Drafting:
    """Makes the drafts of a step, and counts what becomes of them.

    A grammar drafts where it leaves no choice. For other sequences prompt lookup goes first, since
    it costs nothing, and the draft model, if there is one, where that finds no match or has paused.
    A request that says how many tokens to draft, or how sure of them, but nothing of matches,
    speaks to the draft model if there is one. Beams are not drafted.
    """

    def __init__(
        self,
        counters: EngineCounters,
        *,
        enable_prompt_lookup: bool,
        model: DraftModel | None,
        rope_switch_len: int | None = None,
        max_draft_tokens: int | None = None,
    ) -> None:
        """
        Args:
            rope_switch_len: see `Model`. No draft leads across it, since what is verified there
                would be computed as part of a short text.
            max_draft_tokens: how many drafted tokens a step may have; None = any number.
        """
        self._counters = counters
        self._enable_prompt_lookup = enable_prompt_lookup
        self._drafters: dict[int, SequenceDrafters] = {}
        self._model = model
        self._rope_switch_len = rope_switch_len
        self._max_tokens = MAX_DRAFT_TOKENS
        if max_draft_tokens is not None:
            self._max_tokens = min(MAX_DRAFT_TOKENS, max_draft_tokens)

    def start(self, sequence: Sequence) -> None:
        """Chooses the drafters of a new sequence."""
        params, model = sequence.params, self._model
        num_tokens = params.num_assistant_tokens
        if params.grammar is not None or params.beam_search is not None:
            return
        if num_tokens == 0 or self._max_tokens == 0:
            return
        threshold = params.assistant_confidence_threshold
        is_for_model = (
            model is not None
            and params.max_ngram_size is None
            and (num_tokens is not None or threshold is not None)
        )
        drafters = SequenceDrafters()
        if (self._enable_prompt_lookup or num_tokens is not None) and not is_for_model:
            drafters.prompt_lookup = PromptLookup(params)
        if model is not None:
            drafters.model_policy = model.new_policy(params)
        self._drafters[sequence.seq_id] = drafters

    def propose(self, running: list[Sequence]) -> None:
        """Sets the drafts of those sequences that decode in the next step."""
        wanted: list[WantedDraft] = []
        for sequence in running:
            token_ids = sequence.token_ids
            if len(token_ids) - sequence.num_computed_tokens != 1 or sequence.group is not None:
                continue
            room = self._room(sequence)
            if sequence.grammar is not None:
                drafts = array("q", sequence.grammar.forced_tokens(token_ids))
                sequence.draft_token_ids = drafts[:room]
            drafters = self._drafters.get(sequence.seq_id)
            if drafters is None:
                continue
            if drafters.prompt_lookup is not None:
                drafts = drafters.prompt_lookup.propose(token_ids, len(running))
                if drafts or sequence.draft_token_ids:
                    sequence.draft_token_ids = drafts[:room]
                    drafters.drafted_by = drafters.prompt_lookup.policy
            if drafters.model_policy is not None and not sequence.draft_token_ids:
                num_tokens = drafters.model_policy.num_tokens(len(token_ids), len(running))
                if min(num_tokens, room) > 0:
                    wanted.append(WantedDraft(sequence, drafters, min(num_tokens, room)))
        if self._model is not None:
            self._model.propose(wanted)

    def _room(self, sequence: Sequence) -> int:
        """Returns how many tokens a draft may have."""
        room = min(sequence.token_limit - sequence.num_tokens - 1, self._max_tokens)
        limit = self._rope_switch_len
        if limit is None or sequence.num_tokens > limit:
            return room
        return min(room, limit - sequence.num_tokens)

    def settle(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Takes note that the first `num_drafted` tokens of a draft, for which the step had room,
        have been verified, and clears it."""
        del sequence.draft_token_ids[:]
        if num_drafted == 0:
            return
        self._counters.num_drafts += 1
        self._counters.num_draft_tokens += num_drafted
        self._counters.num_accepted_tokens += num_accepted
        drafters = self._drafters.get(sequence.seq_id)
        if drafters is not None and drafters.drafted_by is not None:
            drafters.drafted_by.learn(num_drafted, num_accepted, sequence.num_tokens)

    def finish(self, sequence: Sequence) -> None:
        """Frees what is held for a sequence."""
        self._drafters.pop(sequence.seq_id, None)
        if self._model is not None:
            self._model.free(sequence)

    def check(self) -> None:
        """Asserts that the draft model's books balance."""
        if self._model is not None:
            self._model.check()
