"""The scheduler: plans which tokens the next step computes."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from fastovms.backend_stats import EngineCounters
from fastovms.engine.blocks import LONG_ROOT, ROOT, BlockManager, OutOfBlocks, PrefixMatch
from fastovms.engine.model.kv_cache import BlockCopy, States
from fastovms.engine.model.step_inputs import StepInputs, StepLayout
from fastovms.engine.sequence import Sequence, SequenceStatus
from fastovms.engine.step_costs import PrefillPacing


class Chunk(NamedTuple):
    """The next `num_tokens` tokens of a sequence to compute: uncomputed tokens, then draft
    tokens."""

    sequence: Sequence
    num_tokens: int


@dataclass(slots=True)
class Plan:
    """The plan of a step: block copies first, then every chunk in one inference.

    Attributes:
        num_decodes: the number of chunks of decoding sequences, which come first.
        num_decode_rows: the number of their rows, including drafts.
        num_prefill_tokens: the number of tokens of all other chunks.
        prefill_context: the average number of context tokens before each prefill token.
        admitted: the sequences that left the queue for this step, including those preempted before.
    """

    chunks: list[Chunk] = field(default_factory=list)
    num_decodes: int = 0
    num_decode_rows: int = 0
    num_prefill_tokens: int = 0
    prefill_context: float = 0.0
    block_copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Removes preempted sequences from the plan, before their blocks are freed."""
        dropped = set(sequences)
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence not in dropped]
        if self.block_copies:
            blocks = {block_id for sequence in dropped for block_id in sequence.block_table}
            self.block_copies = [copy for copy in self.block_copies if copy.target not in blocks]

    def add_prefill(self, chunk: Chunk) -> None:
        """Adds a chunk of a prompt."""
        self.chunks.append(chunk)
        context = chunk.sequence.num_computed_tokens + chunk.num_tokens / 2
        num_before = self.num_prefill_tokens
        self.num_prefill_tokens += chunk.num_tokens
        total = num_before * self.prefill_context + chunk.num_tokens * context
        self.prefill_context = total / self.num_prefill_tokens


class ScoredTokens(NamedTuple):
    """The prompt tokens `start` to `end` - 1 of a sequence, which are scored by this step's
    logits."""

    sequence: Sequence
    start: int
    end: int


class SampledTokens(NamedTuple):
    """A sequence for which this step samples, and its number of draft tokens; it has one more row
    of logits than drafts."""

    sequence: Sequence
    num_drafts: int


class Batch(NamedTuple):
    """A step's inputs, and what the rows of its logits belong to: first to `sampled`, then one row
    to each token of `scored`."""

    inputs: StepInputs
    sampled: list[SampledTokens]
    scored: list[ScoredTokens]


def build_batch(chunks: list[Chunk], block_size: int) -> Batch:
    """Returns the inputs of a step, and what its rows of logits belong to. A chunk that reaches the
    last token of its sequence has a row for this token and for each draft token; other chunks have
    none. Rows of scored prompt tokens come last."""
    layout = StepLayout(block_size)
    sampled_token_indices = array("q")
    sampled: list[SampledTokens] = []
    scored_token_indices = array("q")
    scored: list[ScoredTokens] = []
    for sequence, num_tokens in chunks:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        last = layout.add(
            sequence.token_ids,
            start,
            end,
            sequence.block_table,
            sequence.draft_token_ids,
            sequence.adapter,
        )
        num_drafts = end - len(sequence.token_ids)
        if num_drafts >= 0:
            if num_drafts == 0:
                sampled_token_indices.append(last)
            else:
                sampled_token_indices.extend(range(last - num_drafts, last + 1))
            sampled.append(SampledTokens(sequence, num_drafts))
        if sequence.scores_prompt:
            tokens = _scored_tokens(sequence, start, end)
            first_index = last - num_tokens + tokens.start - start
            scored_token_indices.extend(range(first_index, first_index + tokens.end - tokens.start))
            scored.append(tokens)
    sampled_token_indices.extend(scored_token_indices)
    return Batch(layout.finish(sampled_token_indices), sampled, scored)


def _scored_tokens(sequence: Sequence, start: int, end: int) -> ScoredTokens:
    """Returns the prompt tokens that a chunk scores: the logits at position p score the token at p
    + 1. Tokens scored before a preemption are not scored again."""
    first = max(start + 1, len(sequence.prompt_logprobs))
    last = min(end, sequence.num_prompt_tokens - 1)
    return ScoredTokens(sequence, first, max(first, last + 1))


_rank = attrgetter("rank")

PLACES_PER_PRIORITY = 256
"""The number of later requests that may overtake a request per level of priority. It is finite, so
that no request starves, however many of higher priority arrive."""

MAX_PRIORITY = 64
"""The largest effective priority, in either direction; values beyond it are clamped."""


def rank_of(arrival: int, priority: int) -> int:
    """Returns the queue rank of a request; lower ranks run first. `arrival` is the number of the
    request."""
    clamped = max(-MAX_PRIORITY, min(priority, MAX_PRIORITY))
    return arrival + clamped * PLACES_PER_PRIORITY


class WaitingQueue:
    """The waiting sequences of each owner, ordered by rank and then by arrival. Each running
    sequence of an owner lowers the priority of the owner's next one by one level, so that owners
    get equal numbers of running sequences. `num_running` is the number of running sequences of each
    owner."""

    def __init__(self) -> None:
        # Has no entry for owners without waiting sequences.
        self._sequences: dict[str, list[Sequence]] = {}
        self._len = 0
        self._first: Sequence | None = None  # None = not known yet
        self.num_running: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        """Yields the sequences by rank."""
        return merge(*self._sequences.values(), key=_rank)

    @property
    def num_by_owner(self) -> Counter[str]:
        """The number of waiting sequences of each owner."""
        return Counter({owner: len(waiting) for owner, waiting in self._sequences.items()})

    @property
    def first(self) -> Sequence:
        """Returns the next sequence to run, over all owners. The result is cached until a
        change."""
        if self._first is None:
            self._first = min((own[0] for own in self._sequences.values()), key=self.place)
        return self._first

    def place(self, sequence: Sequence) -> int:
        """Returns the position of a sequence in the queue over all owners."""
        return sequence.rank + PLACES_PER_PRIORITY * self.num_running[sequence.owner]

    def add(self, sequence: Sequence) -> None:
        """Inserts a new sequence after those of equal rank."""
        own = self._own(sequence)
        own.insert(bisect_right(own, sequence.rank, key=_rank), sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Inserts a preempted sequence before those of equal rank."""
        own = self._own(sequence)
        own.insert(bisect_left(own, sequence.rank, key=_rank), sequence)

    def remove(self, sequence: Sequence) -> None:
        """Removes a waiting sequence."""
        own = self._sequences[sequence.owner]
        own.remove(sequence)
        if not own:
            del self._sequences[sequence.owner]
        self._len -= 1
        self._first = None

    def note_running(self, owner: str, change: int) -> None:
        """Adds `change` to the number of running sequences of an owner."""
        self.num_running[owner] += change
        if not self.num_running[owner]:
            del self.num_running[owner]
        self._first = None

    def _own(self, sequence: Sequence) -> list[Sequence]:
        """Counts the sequence, and returns its owner's list, for the caller to insert it."""
        self._len += 1
        self._first = None
        return self._sequences.setdefault(sequence.owner, [])


def num_held_tokens(sequence: Sequence) -> int:
    """Returns the number of tokens to hold back: 1 for a beam search whose sequences are not in
    step, otherwise 0."""
    return int(sequence.group is not None and len(sequence.group.sequences) > 1)


class BlockTables:
    """Assigns blocks to sequences; `blocks` counts references.

    Args:
        rope_switch_len: see `Model`.
        has_states: whether the model has recurrent states in addition to attention.
    """

    def __init__(
        self,
        blocks: BlockManager,
        counters: EngineCounters,
        rope_switch_len: int | None = None,
        *,
        has_states: bool = False,
    ) -> None:
        self._blocks = blocks
        self._counters = counters
        self._rope_switch_len = rope_switch_len
        self._has_states = has_states

    def fork_block(self, sequence: Sequence, position: int, plan: Plan) -> None:
        """Replaces a shared block of a sequence by a new one, and adds the copy to the plan. Raises
        OutOfBlocks."""
        source = sequence.block_table[position]
        target = self._blocks.allocate()
        plan.block_copies.append(BlockCopy(source, target))
        sequence.block_table[position] = target
        self._blocks.release(source)

    def prefix_root(self, sequence: Sequence) -> int:
        """Returns the root of the prefix cache for a sequence of this length."""
        limit = self._rope_switch_len
        return ROOT if limit is None or sequence.num_tokens <= limit else LONG_ROOT

    def register_full_blocks(self, sequence: Sequence) -> None:
        """Registers the completely computed blocks in the prefix cache."""
        size = self._blocks.block_size
        for i in range(sequence.num_registered_blocks, sequence.num_computed_tokens // size):
            sequence.prefix_node = self._blocks.register(
                sequence.block_table[i],
                sequence.prefix_node,
                sequence.token_ids[i * size : (i + 1) * size],
                sequence.cache_salt,
                sequence.tenant,
            )
            sequence.num_registered_blocks = i + 1

    def give_blocks(self, sequence: Sequence, plan: Plan) -> bool:
        """Reuses cached blocks and allocates the rest of the sequence's blocks.

        Returns False if there are too few, or the blocks to share are not computed yet.
        """
        parent = sequence.parent
        root = sequence.prefix_root = sequence.prefix_node = self.prefix_root(sequence)
        if parent is not None and self._is_shared_with(parent, root):
            if parent.num_computed_tokens < sequence.num_prompt_tokens:
                return False
            return self._fork_from(parent, sequence, plan)
        if sequence.scores_prompt:  # cached tokens are not computed and have no logits
            match = PrefixMatch([], root)
        else:
            end = sequence.num_tokens - num_held_tokens(sequence)
            tokens, salt = sequence.token_ids[:end], sequence.cache_salt
            match = self._blocks.match_prefix(tokens, salt, root, sequence.tenant)
        # The matched blocks may be in the cached state. They are referenced before free blocks are
        # counted, so that they are neither counted as free nor evicted by the allocations below.
        self._blocks.share(match.block_ids)
        num_missing = self._blocks.num_blocks_for(sequence.num_tokens) - len(match.block_ids)
        if num_missing > self._blocks.num_free_blocks:
            self._blocks.free(array("i", match.block_ids))
            return False
        self._blocks.claim(match.block_ids, sequence.tenant)
        sequence.block_table.extend(match.block_ids)
        sequence.block_table.extend(self._blocks.allocate() for _ in range(num_missing))
        sequence.prefix_node = match.node
        sequence.num_registered_blocks = len(match.block_ids)
        size = self._blocks.block_size
        self._count_prefix(sequence, len(match.block_ids) * size, match.num_own * size)
        return True

    def _is_shared_with(self, parent: Sequence, root: int) -> bool:
        is_finished = parent.status is SequenceStatus.FINISHED
        return not is_finished and self.prefix_root(parent) == root

    def _fork_from(self, parent: Sequence, sequence: Sequence, plan: Plan) -> bool:
        """Shares the parent's prompt blocks. Only the prompt's last token is recomputed, for its
        logits, which forks its block. With states, computation resumes after the last full
        block."""
        num_shared_tokens = sequence.num_prompt_tokens - 1
        if self._has_states:
            num_shared_tokens -= num_shared_tokens % self._blocks.block_size
        num_blocks = self._blocks.num_blocks_for(num_shared_tokens)
        num_forked = int(num_shared_tokens % self._blocks.block_size > 0)
        num_missing = self._blocks.num_blocks_for(sequence.num_tokens) - num_blocks
        if num_missing + num_forked > self._blocks.num_free_blocks:
            return False
        shared = parent.block_table[:num_blocks]
        self._blocks.share(shared)
        sequence.block_table.extend(shared)
        self._count_prefix(sequence, num_shared_tokens, num_shared_tokens)
        sequence.parent = None
        if num_forked:
            self.fork_block(sequence, num_blocks - 1, plan)
        sequence.block_table.extend(self._blocks.allocate() for _ in range(num_missing))
        return True

    def _count_prefix(self, sequence: Sequence, num_cached_tokens: int, num_own: int) -> None:
        """Counts prefix cache hits once per request. Prompt blocks shared between samples, and a
        sequence's own blocks after a preemption, do not count. The client sees only `num_own`, the
        hits in its own tenant's blocks; others would reveal requests of other tenants."""
        sequence.num_computed_tokens = num_cached_tokens
        if sequence.parent is not None:
            sequence.num_cached_tokens = sequence.parent.num_cached_tokens
            sequence.num_own_cached_tokens = sequence.parent.num_own_cached_tokens
        elif not sequence.is_prefix_counted:
            sequence.is_prefix_counted = True
            sequence.num_cached_tokens = num_cached_tokens
            sequence.num_own_cached_tokens = num_own
            self._counters.num_prefix_cache_queries += sequence.num_prompt_tokens
            self._counters.num_prefix_cache_hits += num_cached_tokens


MAX_SCORED_TOKENS = 64
"""The maximum number of tokens of a prompt chunk whose tokens are scored: each needs a row of
logits."""


MAX_RESERVED_TOKENS = 32
"""The maximum number of tokens reserved for prompts in each step, however many sequences decode; at
most the block size."""


def _is_decoding(sequence: Sequence) -> bool:
    return len(sequence.token_ids) - sequence.num_computed_tokens == 1


class Scheduler:
    """Owns the waiting and the running sequences, and through them every block table.

    Prompts are computed in order of rank: a prompt of higher priority is admitted in addition to
    the running ones and computed first.

    Running sequences are kept in order of admission. When blocks run out, the newest sequence of
    the owner with the most blocks is preempted: it loses its blocks, is queued before those of
    equal rank, and is recomputed later (mostly from the prefix cache). An owner's only request is
    preempted only if no owner runs more than one; then the newest request is. The oldest sequence
    can therefore always continue. An owner without running sequences takes a slot and blocks from
    an owner that runs several requests and holds more blocks than the new sequence needs.

    The sequences of a group are adjacent, decode in the same steps and are preempted together. When
    the first one is admitted, slots for the whole group are reserved.

    If a model has another RoPE for long contexts (see `long_rope`), a sequence that becomes long is
    preempted and recomputed.

    Attributes:
        reclaim_blocks: frees blocks that are held outside sequences, and returns whether there were
            any. Called before a sequence is preempted for lack of blocks, and when no sequence can
            continue.
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
        """Creates a scheduler over `blocks`. `rope_switch_len`, `states`: see `Model`."""
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.reclaim_blocks: Callable[[], bool] = lambda: False
        # A running sequence needs one token of the budget in every step, or streams would stutter.
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self._blocks = blocks
        self._counters = counters
        self._tables = BlockTables(blocks, counters, rope_switch_len, has_states=states is not None)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._rope_switch_len = rope_switch_len
        self._states = states
        # Blocks have thousands of tokens in models with large states.
        self._num_reserved_tokens = min(blocks.block_size, MAX_RESERVED_TOKENS)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self.waiting.add(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Adds `child`, a copy of a running sequence, to the running sequences. They share blocks
        until one of them writes."""
        self._blocks.share(parent.block_table)
        self.waiting.note_running(child.owner, 1)
        child.block_table.extend(parent.block_table)
        self.running.insert(self.running.index(parent) + 1, child)

    def finish(self, sequence: Sequence) -> None:
        """Removes a sequence in any state, and frees its blocks."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        self._blocks.free(sequence.block_table)
        sequence.status = SequenceStatus.FINISHED

    def plan(self, pacing: PrefillPacing) -> Plan:
        """Chooses the next step's chunks and allocates their blocks. Preempts sequences if blocks
        are missing.

        Args:
            pacing: limits the prompt tokens of a step with decoding sequences. Used only if no
                other prompt of the streams' priority waits, or if the prompts of one owner would
                delay streams of another (`is_crowd`). Otherwise prompts use the whole budget,
                because all of them wait for each step.
        """
        self._restart_outgrown()
        self._make_way()
        plan = Plan()
        plan.num_decode_rows = self._plan_decodes(plan)
        plan.num_decodes = len(plan.chunks)
        spare = self._max_num_batched_tokens - plan.num_decode_rows
        # Many streams may use up the whole budget; some tokens are reserved for prompts, which
        # would otherwise starve.
        budget = max(spare, self._num_reserved_tokens)
        if len(self.running) == plan.num_decodes and not self.waiting:
            return plan
        prompt, is_crowd = self._paced_prompt() if plan.num_decodes else (None, False)
        if prompt is not None:
            rows = plan.num_decode_rows
            limit = pacing.max_prefill_tokens(
                plan.num_decodes, rows, prompt, budget, is_crowd=is_crowd
            )
            budget = min(budget, limit)
        self._plan_prompts(plan, budget)
        return plan

    def mark_computed(self, plan: Plan) -> None:
        """Records that the KV of a plan's tokens is in the cache, and registers full blocks in the
        prefix cache. Draft tokens are recorded when they are accepted."""
        size = self._blocks.block_size
        self._counters.num_prefill_tokens += plan.num_prefill_tokens
        for sequence, num_tokens in plan.chunks:
            end = sequence.num_computed_tokens + num_tokens
            sequence.num_computed_tokens = min(end, sequence.num_tokens)
            if sequence.num_computed_tokens // size > sequence.num_registered_blocks:
                self._tables.register_full_blocks(sequence)

    def check(self) -> None:
        """Asserts that queues and blocks are consistent."""
        sequences = [*self.running, *self.waiting]
        assert len({id(s) for s in sequences}) == len(sequences), "a sequence is queued twice"
        assert all(s.status is SequenceStatus.RUNNING for s in self.running)
        assert all(s.status is SequenceStatus.WAITING for s in self.waiting)
        assert not any(s.block_table for s in self.waiting), "a waiting sequence holds blocks"
        assert len(self.running) <= self._num_reserved_seqs() <= self.max_num_seqs
        assert Counter(s.owner for s in self.running) == self.waiting.num_running
        runs = [group for group, _ in groupby(self.running, attrgetter("group")) if group]
        assert len(set(runs)) == len(runs), "a group is torn apart"
        for s in self.running:
            assert s.num_computed_tokens < s.num_tokens
            assert s.num_computed_tokens <= len(s.block_table) * self._blocks.block_size
            assert s.prefix_root == ROOT or s.num_tokens > (self._rope_switch_len or 0)
        self._blocks.check(s.block_table for s in sequences)

    # Running sequences

    def _plan_decodes(self, plan: Plan) -> int:
        """Plans a token for each decoding sequence; drafts share the rest of the budget.

        Returns the number of rows, including drafts.
        """
        # `spare` is the budget for draft tokens only. One token per running sequence is reserved
        # beforehand, so that drafts never displace real tokens.
        spare = self._max_num_batched_tokens - len(self.running)
        if self.waiting or not all(map(_is_decoding, self.running)):
            spare -= self._num_reserved_tokens
        if self._states is not None:
            spare = min(spare, self._states.max_draft_tokens)
        for sequence in tuple(self.running):  # a copy: `_make_writable` may preempt sequences
            group = sequence.group
            if sequence.status is not SequenceStatus.RUNNING or not _is_decoding(sequence):
                continue  # preempted for another sequence, or still in its prompt
            if group is not None and not all(map(_is_decoding, group.sequences)):
                continue
            num_tokens = self._num_decoded_tokens(sequence, spare)
            if self._make_writable(sequence, num_tokens, plan):
                plan.chunks.append(Chunk(sequence, num_tokens))
                spare -= num_tokens - 1
        return sum(chunk.num_tokens for chunk in plan.chunks)

    def _num_decoded_tokens(self, sequence: Sequence, spare: int) -> int:
        if not sequence.draft_token_ids:
            return 1
        num_tokens = 1 + min(len(sequence.draft_token_ids), max(0, spare))
        # A draft is not worth a preemption.
        room = (len(sequence.block_table) + self._blocks.num_free_blocks) * self._blocks.block_size
        return max(1, min(num_tokens, room - sequence.num_computed_tokens - 1))

    def _paced_prompt(self) -> tuple[Sequence | None, bool]:
        """Returns the first prompt, or None if it may delay streams; and whether prompts of other
        requests wait after it (a crowd). Prompts of lower priority than a stream do not form a
        crowd. A crowd takes precedence over streams, unless an owner has several of its prompts and
        another owner without any has a stream.

        At least one sequence must be decoding.
        """
        prefilling = [s for s in self.running if not _is_decoding(s)]
        first = min(prefilling, key=self.waiting.place, default=None) or self._next_waiting()
        urgent = min(s.priority for s in self.running if _is_decoding(s))
        for other in chain(prefilling, self.waiting):
            if other.request_id != first.request_id and other.priority <= urgent:
                break
        else:
            return first, False
        prompts = self.waiting.num_by_owner + Counter(s.owner for s in prefilling)
        if max(prompts.values()) > 1 and not self.waiting.num_running.keys() <= prompts.keys():
            return first, True
        return None, True

    def _plan_prompts(self, plan: Plan, budget: int) -> None:
        """Divides the token budget between running and waiting prompts, in queue order."""
        prefilling = [s for s in self.running if not _is_decoding(s)]
        for sequence in sorted(prefilling, key=self.waiting.place):
            budget = self._admit(plan, budget, before=sequence)
            if budget > 0:
                budget -= self._plan_chunk(sequence, plan, budget)
        self._admit(plan, budget)

    def _plan_chunk(self, sequence: Sequence, plan: Plan, budget: int) -> int:
        num_tokens = min(sequence.num_uncomputed_tokens - num_held_tokens(sequence), budget)
        if sequence.scores_prompt:
            num_tokens = min(num_tokens, MAX_SCORED_TOKENS)
        plan.add_prefill(Chunk(sequence, num_tokens))
        return num_tokens

    def _make_writable(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Ensures that the sequence has unshared blocks for its next tokens. Returns False if the
        sequence itself was preempted for lack of blocks."""
        size = self._blocks.block_size
        block_table = sequence.block_table
        position = sequence.num_computed_tokens // size
        last = (sequence.num_computed_tokens + num_tokens - 1) // size
        while position <= last:
            try:
                if position == len(block_table):
                    block_table.append(self._blocks.allocate())
                # Another sample or beam reads the block, and must not see new tokens.
                elif self._blocks.is_shared(block_table[position]):
                    self._tables.fork_block(sequence, position, plan)
                position += 1
            except OutOfBlocks:
                if self.reclaim_blocks():
                    continue
                # Each pass preempts at least one sequence, at last this one, so the loop ends.
                owner, _ = self._largest_owner()
                self._preempt_newest(self.running[-1].owner if owner is None else owner, plan)
                if sequence.status is SequenceStatus.WAITING:
                    return False
        return True

    def _make_way(self) -> None:
        """If the owner of the next waiting sequence runs nothing, preempts the newest sequence of
        the owner with the most blocks, provided that owner runs several requests and holds more
        blocks than the waiting sequence needs."""
        if not self.waiting:
            return
        sequence = self._next_waiting()
        if self.waiting.num_running[sequence.owner]:
            return
        num_blocks = self._blocks.num_blocks_for(sequence.num_tokens)
        num_seqs = self.max_num_seqs - self._num_newly_reserved(sequence)
        while self._num_reserved_seqs() > num_seqs or self._blocks.num_free_blocks < num_blocks:
            if self._blocks.num_free_blocks < num_blocks and self.reclaim_blocks():
                continue
            owner, num_held = self._largest_owner()
            # An owner that holds no more blocks than this sequence needs is not preempted:
            # otherwise two owners could preempt each other in turn without progress.
            if owner is None or num_held <= num_blocks:
                return
            # A sequence of higher priority would be admitted again before this one, in each step.
            if self._newest(owner).priority < sequence.priority:
                return
            # This runs before the step is planned: no plan has the sequence yet.
            self._preempt_newest(owner, Plan())

    def _largest_owner(self) -> tuple[str | None, int]:
        """Returns the owner with the most blocks among those that run several requests, and its
        number of blocks; (None, 0) = no such owner."""
        held: Counter[str] = Counter()
        requests: defaultdict[str, set[Hashable]] = defaultdict(set)
        for sequence in self.running:
            held[sequence.owner] += len(sequence.block_table)
            requests[sequence.owner].add(sequence.group or sequence.seq_id)
        several = [owner for owner, own in requests.items() if len(own) > 1]
        owner = max(several, key=held.__getitem__, default=None)
        return owner, 0 if owner is None else held[owner]

    def _newest(self, owner: str) -> Sequence:
        """Returns the owner's most recently admitted running sequence."""
        return next(s for s in reversed(self.running) if s.owner == owner)

    def _preempt_newest(self, owner: str, plan: Plan) -> None:
        """Preempts the owner's most recently admitted sequence and its group, and removes them from
        the plan."""
        last = self._newest(owner)
        group = last.group
        sequences = [last] if group is None else [s for s in self.running if s.group is group]
        self._counters.num_preemptions += len(sequences)
        plan.drop(sequences)
        self._preempt_all(sequences)

    def _preempt_all(self, sequences: list[Sequence]) -> None:
        """Preempts running sequences, given in order of admission, which is also their order in the
        queue. Afterwards, the first sample of each group computes the prompt, and the others share
        its blocks."""
        for sequence in reversed(sequences):
            self._preempt(sequence)
        firsts = {s.group: s for s in reversed(sequences) if s.group is not None}
        for group, first in firsts.items():
            for sequence in group.sequences:
                sequence.parent = None if sequence is first else first

    def _restart_outgrown(self) -> None:
        """Preempts sequences that have exceeded `rope_switch_len`, because their KV must be
        recomputed. Not counted as a preemption for lack of blocks."""
        if self._rope_switch_len is None:
            return
        self._preempt_all([s for s in self.running if s.prefix_root != self._tables.prefix_root(s)])

    def _stop(self, sequence: Sequence) -> None:
        """Removes a sequence from the running ones."""
        self.running.remove(sequence)
        self.waiting.note_running(sequence.owner, -1)

    def _preempt(self, sequence: Sequence) -> None:
        self._stop(sequence)
        # Full blocks stay in the prefix cache until others need them. A sequence that is admitted
        # again soon finds most of them there, and computes little twice.
        self._blocks.free(sequence.block_table)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0
        del sequence.draft_token_ids[:]
        self.waiting.put_back(sequence)

    # Waiting sequences

    def _admit(self, plan: Plan, budget: int, *, before: Sequence | None = None) -> int:
        """Admits waiting sequences, only those that precede `before` in the queue if it is given.
        Returns the remaining token budget."""
        place = self.waiting.place
        num_seqs = self._num_reserved_seqs() if self.waiting else 0
        while self.waiting and budget > 0:
            sequence = self._next_waiting()
            if before is not None and place(sequence) >= place(before):
                break
            # The loop stops at the first sequence that does not fit. Smaller ones after it are not
            # admitted: a large one might otherwise wait forever.
            num_new = self._num_newly_reserved(sequence)
            if num_seqs + num_new > self.max_num_seqs:
                break
            if not self._tables.give_blocks(sequence, plan):
                # With chunks in the plan the engine makes progress, and blocks become free later.
                if not plan.chunks and self.reclaim_blocks():
                    continue
                break
            num_seqs += num_new
            self.waiting.remove(sequence)
            sequence.status = SequenceStatus.RUNNING
            self.running.append(sequence)
            self.waiting.note_running(sequence.owner, 1)
            plan.admitted.append(sequence)
            budget -= self._plan_chunk(sequence, plan, budget)
        return budget

    def _next_waiting(self) -> Sequence:
        """Returns the next sequence to admit. The rest of a partly running group comes first."""
        group = self.running[-1].group if self.running else None
        others = group.sequences if group is not None else ()
        is_waiting = (s for s in others if s.status is SequenceStatus.WAITING)
        return next(is_waiting, self.waiting.first)

    def _num_reserved_seqs(self) -> int:
        """Returns the maximum number of sequences to which the running ones may fork."""
        groups = {s.group for s in self.running if s.group is not None}
        num_single = sum(s.group is None for s in self.running)
        return num_single + sum(group.size for group in groups)

    def _num_newly_reserved(self, sequence: Sequence) -> int:
        group = sequence.group
        if group is None:
            return 1
        is_admitted = any(s.status is SequenceStatus.RUNNING for s in group.sequences)
        return 0 if is_admitted else group.size
