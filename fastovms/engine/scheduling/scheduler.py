"""Decides what the next step computes: a token budget shared by running decodes first, and then by
prompts, in order of rank; and who is preempted where blocks run out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, groupby
from math import inf
from operator import attrgetter

from fastovms.backend_stats import EngineCounters
from fastovms.engine.model.state_rows import States
from fastovms.engine.scheduling.block_tables import BlockTables, num_held_tokens
from fastovms.engine.scheduling.blocks import ROOT, BlockManager, OutOfBlocks
from fastovms.engine.scheduling.plan import Chunk, Plan
from fastovms.engine.scheduling.sequence import Sequence, SequenceGroup, SequenceStatus
from fastovms.engine.scheduling.waiting import WaitingQueue

MAX_SCORED_TOKENS = 64
"""The most tokens of a chunk of a prompt whose tokens are scored: each costs a row of logits."""


MAX_RESERVED_TOKENS = 32
"""The most tokens that a step keeps for prompts, however many sequences decode: as many as a block
has, where it has fewer."""

MaxPrefillTokens = Callable[[int, int, Sequence, int], int]


def _whole_budget(num_decodes: int, num_rows: int, prompt: Sequence, budget: int) -> int:
    return budget


def _is_decoding(sequence: Sequence) -> bool:
    return len(sequence.token_ids) - sequence.num_computed_tokens == 1


def _is_in_step(group: SequenceGroup) -> bool:
    return all(map(_is_decoding, group.sequences))


class Scheduler:
    """Owns the waiting and the running sequences, and through them every block table.

    Prompts are computed in order of rank: one of higher priority is admitted beside those that have
    begun, and goes first. Their blocks are theirs already, so that this takes none from anybody.

    Running sequences are kept in order of admission. When blocks run out, the one admitted last
    is preempted: it loses its blocks, waits before its equals and computes its tokens again
    (mostly prefix cache hits). The first one can always go on, so work is never stuck.

    A group's sequences stand side by side, decode in the same steps and are preempted together.
    Room for all that a group may come to is taken when its first sequence is admitted.

    Where a model rotates the positions of long texts otherwise (see `long_rope`), a sequence that
    becomes one of them is preempted as well, and all of it is computed again.

    Attributes:
        reclaim_blocks: takes back the blocks that are held beside those of sequences, and returns
            whether there were any. It is called before a sequence is preempted for want of blocks,
            and where nothing could go on.
    """

    def __init__(
        self,
        blocks: BlockManager,
        counters: EngineCounters,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        rope_switch_len: int | None = None,
        states: States | None = None,
    ) -> None:
        """Makes a scheduler over `blocks`. `rope_switch_len`, `states`: see `Model`."""
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.reclaim_blocks: Callable[[], bool] = lambda: False
        # A running sequence needs a token of budget in every step, else streams would stutter.
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self._blocks = blocks
        self._counters = counters
        self._tables = BlockTables(blocks, counters, rope_switch_len, has_states=states is not None)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._rope_switch_len = rope_switch_len
        self._states = states
        # Blocks have thousands of tokens where a model has large states.
        self._num_reserved_tokens = min(blocks.block_size, MAX_RESERVED_TOKENS)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Runs a copy of a running sequence beside it. They share their blocks until they write."""
        self._blocks.share(parent.block_table)
        child.block_table.extend(parent.block_table)
        self.running.insert(self.running.index(parent) + 1, child)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, at any stage, and frees its blocks."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        self._blocks.free(sequence.block_table)
        sequence.status = SequenceStatus.FINISHED

    def plan(self, max_prefill_tokens: MaxPrefillTokens = _whole_budget) -> Plan:
        """Chooses the next step's chunks and allocates their blocks, preempting where it must.

        Args:
            max_prefill_tokens: returns how many tokens of a prompt the step may have, given how
                many sequences decode, their rows, the prompt's sequence, and the budget that is
                left. It is asked only for a prompt behind which no other waits, of the streams'
                priority: else the crowd goes first.
        """
        self._restart_outgrown()
        plan = Plan()
        plan.num_decode_rows = self._plan_decodes(plan)
        plan.num_decodes = len(plan.chunks)
        spare = self._max_num_batched_tokens - plan.num_decode_rows
        budget = max(spare, self._num_reserved_tokens)
        if len(self.running) == plan.num_decodes and not self.waiting:
            return plan
        prompt = self._only_prompt() if plan.num_decodes else None
        if prompt is not None:
            limit = max_prefill_tokens(plan.num_decodes, plan.num_decode_rows, prompt, budget)
            budget = min(budget, limit)
        self._plan_prompts(plan, budget)
        return plan

    def mark_computed(self, plan: Plan) -> None:
        """Records that a plan's KV is in the cache, and makes its full blocks findable. Drafts
        are nobody's tokens yet: who accepts one records it."""
        size = self._blocks.block_size
        self._counters.num_prefill_tokens += plan.num_prefill_tokens
        for sequence, num_tokens in plan.chunks:
            end = sequence.num_computed_tokens + num_tokens
            sequence.num_computed_tokens = min(end, sequence.num_tokens)
            if sequence.num_computed_tokens // size > sequence.num_registered_blocks:
                self._tables.register_full_blocks(sequence)

    def check(self) -> None:
        """Asserts that queues and blocks agree."""
        sequences = [*self.running, *self.waiting]
        assert len({id(s) for s in sequences}) == len(sequences), "a sequence is queued twice"
        assert all(s.status is SequenceStatus.RUNNING for s in self.running)
        assert all(s.status is SequenceStatus.WAITING for s in self.waiting)
        assert not any(s.block_table for s in self.waiting), "a waiting sequence holds blocks"
        assert len(self.running) <= self._num_reserved_seqs() <= self.max_num_seqs
        runs = [group for group, _ in groupby(self.running, attrgetter("group")) if group]
        assert len(set(runs)) == len(runs), "a group is torn apart"
        for s in self.running:
            assert s.num_computed_tokens < s.num_tokens
            assert s.num_computed_tokens <= len(s.block_table) * self._blocks.block_size
            assert s.prefix_root == ROOT or s.num_tokens > (self._rope_switch_len or 0)
        self._blocks.check(s.block_table for s in sequences)

    # Running sequences

    def _plan_decodes(self, plan: Plan) -> int:
        """Plans a token for each decoding sequence; drafts share the rest of the budget."""
        num_planned = 0
        spare = self._max_num_batched_tokens - len(self.running)
        if self.waiting or not all(map(_is_decoding, self.running)):
            spare -= self._num_reserved_tokens
        if self._states is not None:
            spare = min(spare, self._states.max_draft_tokens)
        for sequence in self._running_in_order():
            group = sequence.group
            if not _is_decoding(sequence) or not (group is None or _is_in_step(group)):
                continue
            num_tokens = self._num_decoded_tokens(sequence, spare)
            if self._make_writable(sequence, num_tokens, plan):
                plan.chunks.append(Chunk(sequence, num_tokens))
                num_planned += num_tokens
                spare -= num_tokens - 1
            elif group is not None:  # what is planned of it was preempted as well
                while plan.chunks and plan.chunks[-1].sequence.group is group:
                    num_planned -= plan.chunks.pop().num_tokens
        return num_planned

    def _num_decoded_tokens(self, sequence: Sequence, spare: int) -> int:
        if not sequence.draft_token_ids:
            return 1
        num_tokens = 1 + min(len(sequence.draft_token_ids), max(0, spare))
        # A guess is not worth a preemption.
        room = (len(sequence.block_table) + self._blocks.num_free_blocks) * self._blocks.block_size
        return max(1, min(num_tokens, room - sequence.num_computed_tokens - 1))

    def _only_prompt(self) -> Sequence | None:
        """Returns the prompt that goes first, unless prompts of other requests wait behind it.
        Those of lower priority than some stream may wait for it: they are no crowd.

        Something must be decoding."""
        prefilling = [s for s in self.running if not _is_decoding(s)]
        first = min(prefilling, key=attrgetter("rank"), default=None) or self._next_waiting()
        urgent = min(s.priority for s in self.running if _is_decoding(s))
        for other in chain(prefilling, self.waiting):
            if other.request_id != first.request_id and other.priority <= urgent:
                return None
        return first

    def _plan_prompts(self, plan: Plan, budget: int) -> None:
        """Shares the budget by rank between prompts that have begun and those that wait."""
        prefilling = [s for s in self.running if not _is_decoding(s)]
        for sequence in sorted(prefilling, key=attrgetter("rank")):
            budget = self._admit(plan, budget, before=sequence.rank)
            if budget > 0:
                budget -= self._plan_chunk(sequence, plan, budget)
        self._admit(plan, budget)

    def _plan_chunk(self, sequence: Sequence, plan: Plan, budget: int) -> int:
        num_tokens = min(sequence.num_uncomputed_tokens - num_held_tokens(sequence), budget)
        if sequence.scores_prompt:
            num_tokens = min(num_tokens, MAX_SCORED_TOKENS)
        plan.add_prefill(Chunk(sequence, num_tokens))
        return num_tokens

    def _running_in_order(self) -> Iterator[Sequence]:
        """Yields the running sequences while preemption shortens their list from its end."""
        i = 0
        while i < len(self.running):
            yield self.running[i]
            i += 1

    def _make_writable(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Sees to it that the sequence alone owns the blocks of its next tokens.

        False: it was preempted itself, for want of blocks.
        """
        size = self._blocks.block_size
        block_table = sequence.block_table
        position = sequence.num_computed_tokens // size
        last = (sequence.num_computed_tokens + num_tokens - 1) // size
        while position <= last:
            try:
                if position == len(block_table):
                    block_table.append(self._blocks.allocate())
                elif self._blocks.is_shared(block_table[position]):
                    self._tables.fork_block(sequence, position, plan)
                position += 1
            except OutOfBlocks:
                if self.reclaim_blocks():
                    continue
                self._preempt_last()
                if sequence.status is SequenceStatus.WAITING:
                    return False
        return True

    def _preempt_last(self) -> None:
        """Preempts the last. What is planned stays: decodes are in order of admission."""
        last = self.running[-1]
        group = last.group
        sequences = [last] if group is None else [s for s in self.running if s.group is group]
        self._counters.num_preemptions += len(sequences)
        self._preempt_all(sequences)

    def _preempt_all(self, sequences: list[Sequence]) -> None:
        """Preempts running sequences, given in order of admission, in which they will wait. The
        rest of a group will share the prompt of its first one, as it did before."""
        for sequence in reversed(sequences):
            self._preempt(sequence)
        firsts = {s.group: s for s in reversed(sequences) if s.group is not None}
        for group, first in firsts.items():
            for sequence in group.sequences:
                sequence.parent = None if sequence is first else first

    def _restart_outgrown(self) -> None:
        """Preempts texts that have become long ones: nothing computed is of use to them. That is no
        want of blocks, and not counted as such."""
        if self._rope_switch_len is None:
            return
        self._preempt_all([s for s in self.running if s.prefix_root != self._tables.prefix_root(s)])

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._blocks.free(sequence.block_table)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0
        del sequence.draft_token_ids[:]
        self.waiting.put_back(sequence)

    # Waiting sequences

    def _admit(self, plan: Plan, budget: int, *, before: float = inf) -> int:
        """Admits those that wait, of a rank below `before`. Returns what is left of the budget."""
        num_seqs = self._num_reserved_seqs() if self.waiting else 0
        while self.waiting and budget > 0:
            sequence = self._next_waiting()
            if sequence.rank >= before:
                break
            num_new = self._num_newly_reserved(sequence)
            if num_seqs + num_new > self.max_num_seqs:
                break
            if not self._tables.give_blocks(sequence, plan):
                if not plan.chunks and self.reclaim_blocks():
                    continue
                break
            num_seqs += num_new
            self.waiting.remove(sequence)
            sequence.status = SequenceStatus.RUNNING
            self.running.append(sequence)
            plan.admitted.append(sequence)
            budget -= self._plan_chunk(sequence, plan, budget)
        return budget

    def _next_waiting(self) -> Sequence:
        """Returns the next to admit: what is left of a group, until all of it runs, comes first."""
        group = self.running[-1].group if self.running else None
        others = group.sequences if group is not None else ()
        is_waiting = (s for s in others if s.status is SequenceStatus.WAITING)
        return next(is_waiting, self.waiting.first)

    def _num_reserved_seqs(self) -> int:
        """Returns how many sequences the running ones may come to."""
        groups = {s.group for s in self.running if s.group is not None}
        num_single = sum(s.group is None for s in self.running)
        return num_single + sum(group.size for group in groups)

    def _num_newly_reserved(self, sequence: Sequence) -> int:
        group = sequence.group
        if group is None:
            return 1
        is_admitted = any(s.status is SequenceStatus.RUNNING for s in group.sequences)
        return 0 if is_admitted else group.size
