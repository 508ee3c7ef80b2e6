"""Tests of `fastovms/engine/scheduler.py`."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from fastovms.backend_stats import EngineCounters
from fastovms.engine.blocks import LONG_ROOT, ROOT, BlockManager
from fastovms.engine.model.kv_cache import BlockCopy
from fastovms.engine.scheduler import BlockTables, Chunk, Plan, WaitingQueue, build_batch, rank_of
from fastovms.engine.sequence import Sequence, SequenceStatus
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.fake_model import continue_greedily
from tests.engine.random_operations import RandomOperations
from tests.engine.test_engine import greedy, make_engine, run, text

# What a plan counts of the chunks in it.


def test_the_context_of_prompts_is_that_of_their_tokens() -> None:
    plan = Plan()
    for start, num_tokens in ((0, 100), (1000, 300)):
        sequence = Sequence(
            0, GenerationRequest("r", [1] * 2000, SamplingParams()), 0, token_limit=2001
        )
        sequence.num_computed_tokens = start
        plan.add_prefill(Chunk(sequence, num_tokens))
    assert plan.num_prefill_tokens == 400
    assert plan.num_decodes == 0
    assert plan.prefill_context == pytest.approx((100 * 50 + 300 * 1150) / 400)


# What the rows of a step's logits are for.


def sequence(num_computed: int, num_tokens: int, *drafts: int, scores: bool = False) -> Sequence:
    params = SamplingParams(prompt_logprobs=0 if scores else None)
    made = Sequence(0, GenerationRequest("r", range(num_tokens), params), 0, token_limit=99)
    made.num_computed_tokens = num_computed
    made.draft_token_ids = array("q", drafts)
    made.block_table = array("i", range(10))
    return made


@pytest.mark.parametrize(
    ("chunks", "rows", "sampled"),
    [
        ([(sequence(0, 6), 4)], [], []),  # a part of a prompt
        ([(sequence(4, 6), 2)], [1], [0]),
        ([(sequence(5, 6), 1), (sequence(7, 8), 1)], [0, 1], [0, 0]),
        ([(sequence(5, 6, 1, 2), 3)], [0, 1, 2], [2]),
        ([(sequence(5, 6, 1, 2), 2)], [0, 1], [1]),  # no room for the second draft
        ([(sequence(0, 4), 3), (sequence(5, 6), 1)], [3], [0]),
    ],
)
def test_rows_of_complete_prompts_and_decodes_are_sampled(
    chunks: list[tuple[Sequence, int]], rows: list[int], sampled: list[int]
) -> None:
    batch = build_batch([Chunk(*chunk) for chunk in chunks], 4)
    assert batch.inputs.sampled_token_indices.tolist() == rows
    assert [tokens.num_drafts for tokens in batch.sampled] == sampled
    assert batch.scored == []


@pytest.mark.parametrize(
    ("start", "num_tokens", "num_scored", "rows", "first", "end"),
    [
        (0, 3, 1, [0, 1, 2], 1, 4),
        (3, 3, 4, [2, 0, 1], 4, 6),  # the last token's row is for the sample
        (0, 3, 3, [2], 3, 4),  # scored before a preemption
        (0, 2, 4, [], 4, 4),
    ],
)
def test_each_row_scores_the_next_token(
    start: int, num_tokens: int, num_scored: int, rows: list[int], first: int, end: int
) -> None:
    scoring = sequence(start, 6, scores=True)
    scoring.prompt_logprobs = [None] * num_scored
    batch = build_batch([Chunk(scoring, num_tokens)], 4)
    assert batch.inputs.sampled_token_indices.tolist() == rows
    assert [(tokens.start, tokens.end) for tokens in batch.scored] == [(first, end)]


def waiting_sequence(arrival: int, priority: int = 0, index: int = 0) -> Sequence:
    return Sequence(
        0,
        GenerationRequest(f"{arrival}", [1], SamplingParams()),
        index,
        token_limit=9,
        rank=rank_of(arrival, priority),
    )


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ([0, 0, 0], [0, 1, 2]),
        ([0, 1, -1], [2, 0, 1]),
        ([2, 1, 1, 0], [3, 1, 2, 0]),
        ([10**18, 0, -(10**18)], [2, 1, 0]),
    ],
)
def test_lower_priorities_first_then_first_come(priorities: list[int], order: list[int]) -> None:
    queue = WaitingQueue()
    for arrival, priority in enumerate(priorities):
        queue.add(waiting_sequence(arrival, priority))
    assert [int(s.request_id) for s in queue] == order
    assert queue.first.request_id == str(order[0])


def test_samples_stay_in_order_and_preempted_ones_come_first() -> None:
    queue = WaitingQueue()
    samples = [waiting_sequence(1, index=i) for i in range(3)]
    for sample in samples:
        queue.add(sample)
    first = queue.first
    queue.remove(first)
    queue.put_back(first)
    queue.add(waiting_sequence(0))
    assert [(s.request_id, s.index) for s in queue] == [("0", 0), ("1", 0), ("1", 1), ("1", 2)]


def test_early_arrival_outranks_a_late_request_of_any_priority() -> None:
    """However many of the highest priority keep coming, an early arrival is not passed by all."""
    assert rank_of(0, 10**9) < rank_of(10**6, -(10**9))


# The blocks that sequences get: shared ones, new ones, and none where there are too few.


BLOCK_SIZE = 4


def block_tables_sequence(
    num_tokens: int, *, parent: Sequence | None = None, **params: int
) -> Sequence:
    request = GenerationRequest("r", list(range(num_tokens)), SamplingParams(**params))
    return Sequence(0, request, 0, token_limit=99, parent=parent)


def tables(
    num_blocks: int = 8, rope_switch_len: int | None = None, *, has_states: bool = False
) -> tuple[BlockTables, BlockManager, EngineCounters]:
    blocks, counters = BlockManager(num_blocks, BLOCK_SIZE), EngineCounters()
    made = BlockTables(blocks, counters, rope_switch_len, has_states=has_states)
    return made, blocks, counters


def computed(made: BlockTables, num_tokens: int) -> Sequence:
    """A sequence all of whose tokens are computed but the last."""
    first = block_tables_sequence(num_tokens)
    assert made.give_blocks(first, Plan())
    first.status = SequenceStatus.RUNNING
    first.num_computed_tokens = num_tokens - 1
    made.register_full_blocks(first)
    return first


def test_full_blocks_are_shared_and_the_rest_is_new() -> None:
    made, blocks, counters = tables()
    first, second = computed(made, 10), block_tables_sequence(10)
    assert made.give_blocks(second, Plan())
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert (second.num_computed_tokens, second.num_registered_blocks) == (8, 2)
    assert (counters.num_prefix_cache_queries, counters.num_prefix_cache_hits) == (20, 8)
    blocks.check([first.block_table, second.block_table])


@pytest.mark.parametrize("num_blocks", [2, 3])
def test_failed_block_allocation_takes_no_blocks(num_blocks: int) -> None:
    made, blocks, _ = tables(num_blocks)
    wanted = block_tables_sequence(4 * BLOCK_SIZE)
    assert not made.give_blocks(wanted, Plan())
    assert (len(wanted.block_table), blocks.num_free_blocks) == (0, num_blocks)


def test_prompt_with_prompt_logprobs_does_not_use_cached_blocks() -> None:
    made, _, counters = tables()
    computed(made, 10)
    second = block_tables_sequence(10, prompt_logprobs=1)
    assert made.give_blocks(second, Plan())
    assert (second.num_computed_tokens, counters.num_prefix_cache_hits) == (0, 0)


def test_a_sample_waits_for_its_requests_first_and_shares_its_prompt() -> None:
    made, blocks, counters = tables()
    first = block_tables_sequence(6)
    assert made.give_blocks(first, Plan())
    first.status = SequenceStatus.RUNNING
    sample, plan = block_tables_sequence(6, parent=first), Plan()
    assert not made.give_blocks(sample, plan), "the prompt is not computed yet"
    first.num_computed_tokens = 6
    assert made.give_blocks(sample, plan)
    assert sample.block_table[0] == first.block_table[0]
    assert plan.block_copies == [BlockCopy(first.block_table[1], sample.block_table[1])]
    assert (sample.num_computed_tokens, counters.num_prefix_cache_queries) == (5, 6)
    blocks.check([first.block_table, sample.block_table])


@pytest.mark.parametrize(("num_tokens", "root"), [(8, ROOT), (9, LONG_ROOT)])
def test_long_texts_have_a_root_of_their_own(num_tokens: int, root: int) -> None:
    made, *_ = tables(rope_switch_len=8)
    assert made.prefix_root(block_tables_sequence(num_tokens)) == root


@pytest.mark.parametrize(
    ("has_states", "num_tokens", "num_computed", "num_shared"),
    [(False, 10, 9, 2), (False, 9, 8, 2), (True, 10, 8, 2), (True, 9, 8, 2), (True, 8, 4, 1)],
)
def test_a_sample_goes_on_from_its_prompt_or_from_where_there_is_a_state(
    has_states: bool, num_tokens: int, num_computed: int, num_shared: int
) -> None:
    made, blocks, _ = tables(has_states=has_states)
    parent = computed(made, num_tokens + 1)
    parent.num_prompt_tokens = num_tokens
    sample = block_tables_sequence(num_tokens, parent=parent)
    plan = Plan()
    assert made.give_blocks(sample, plan)
    assert sample.num_computed_tokens == num_computed
    assert sample.block_table[:num_shared] == parent.block_table[:num_shared]
    assert bool(plan.block_copies) is (num_computed % BLOCK_SIZE > 0)
    blocks.check([parent.block_table, sample.block_table])


# The order in which sequences run, and the blocks that they share.


def test_preemption_does_not_change_the_generated_tokens() -> None:
    engine, _ = make_engine(num_blocks=10, max_model_len=40)
    for i, prompt in enumerate([[1] * 8, [2] * 8, [3] * 8]):
        engine.add(greedy(str(i), prompt, max_tokens=24))
    outputs = run(engine)
    assert engine.counters.num_preemptions > 0
    for i in range(3):
        assert text(outputs[str(i), 0]) == continue_greedily([i + 1] * 8, 24)


def test_token_budget_is_kept_and_decodes_go_first() -> None:
    engine, model = make_engine(max_num_batched_tokens=8, num_blocks=128, max_model_len=128)
    engine.add(greedy("short", [1, 2], max_tokens=40))
    engine.step()
    engine.add(greedy("long", list(range(60)), max_tokens=2))
    streamed = 0
    while engine.has_work:
        streamed += sum(request_id == "short" for request_id, _ in engine.step())
        if "long" not in engine._requests:
            break
    steps_of_the_long_prompt = -(-60 // 7)
    assert streamed >= steps_of_the_long_prompt
    assert max(model.num_tokens_per_step) <= 8


def test_second_request_reuses_the_first_ones_blocks() -> None:
    engine, model = make_engine()
    prompt = list(range(20))
    engine.add(greedy("first", prompt, max_tokens=4))
    run(engine)
    model.num_tokens_per_step.clear()
    engine.add(greedy("second", prompt, max_tokens=4))
    outputs = run(engine)
    assert text(outputs["second", 0]) == continue_greedily(prompt, 4)
    assert outputs["second", 0][0].num_cached_tokens == 16
    assert model.num_tokens_per_step[0] == 4
    assert engine.counters.num_prefix_cache_hits == 16


def test_samples_share_the_prompt_and_fork_on_write() -> None:
    engine, model = make_engine(max_num_batched_tokens=256)
    prompt = list(range(18))
    engine.add(greedy("r", prompt, max_tokens=6, n=4))
    outputs = run(engine)
    assert sorted(outputs) == [("r", i) for i in range(4)]
    assert all(text(of) == continue_greedily(prompt, 6) for of in outputs.values())
    assert model.num_tokens_per_step[:2] == [18, 4], "the prompt is computed once"


def test_priorities_order_those_that_wait() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    for name, priority in (("first", 0), ("low", 5), ("high", -5)):
        params = SamplingParams(temperature=0, max_tokens=3)
        engine.add(GenerationRequest(name, [1, 2], params, priority=priority))
    assert list(dict.fromkeys(name for name, _ in run(engine))) == ["high", "first", "low"]


def urgent(request_id: str, prompt: list[int], **params: object) -> GenerationRequest:
    return replace(greedy(request_id, prompt, **params), priority=-1)


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_of_higher_priority_is_computed_before_the_rest_of_one_that_has_begun(
    n: int,
) -> None:
    engine, _ = make_engine(max_num_batched_tokens=16, num_blocks=300, max_model_len=1100)
    long, short = [i * 7 % 97 for i in range(1000)], [5, 6, 7, 8, 9]
    engine.add(greedy("long", long, max_tokens=4))
    engine.step()
    engine.add(greedy("equal", short, max_tokens=4))
    engine.add(urgent("urgent", short, max_tokens=4, n=n))
    assert [request_id for request_id, _ in engine.step()] == ["urgent"]
    outputs = run(engine)
    assert list(dict.fromkeys(request_id for request_id, _ in outputs)) == [
        "urgent",
        "long",
        "equal",
    ]
    assert text(outputs["long", 0]) == continue_greedily(long, 4)
    for index in range(1, n):
        assert text(outputs["urgent", index]) == continue_greedily(short, 4)


def test_request_of_highest_rank_continues_first() -> None:
    engine, _ = make_engine(max_num_batched_tokens=16, num_blocks=300, max_model_len=1100)
    engine.add(greedy("long", [1] * 500, max_tokens=1))
    engine.step()
    engine.add(urgent("urgent", [2] * 160, max_tokens=1))
    num_steps = 1
    while not (outputs := engine.step()):
        num_steps += 1
    assert (outputs[0][0], num_steps) == ("urgent", 10)


def test_prompts_that_overtake_wait_for_their_blocks() -> None:
    """Those that have begun keep theirs."""
    engine, _ = make_engine(max_num_batched_tokens=8, num_blocks=16, max_model_len=64)
    engine.add(greedy("long", [1] * 60, max_tokens=4))
    engine.step()
    engine.add(urgent("urgent", [2] * 20, max_tokens=4))
    outputs = run(engine)
    assert list(outputs) == [("long", 0), ("urgent", 0)]
    assert engine.counters.num_preemptions == 0
    for name, token, length in (("long", 1, 60), ("urgent", 2, 20)):
        assert text(outputs[name, 0]) == continue_greedily([token] * length, 4)


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [20, 60])
def test_thousands_of_operations_with_prompts_that_overtake_each_other(num_blocks: int) -> None:
    engine, _ = make_engine(num_blocks=num_blocks, max_model_len=80, max_num_batched_tokens=6)
    overtakings = 0
    plan = engine.scheduler.plan

    def count(*args: object) -> Plan:
        nonlocal overtakings
        begun = [s.rank for s in engine.scheduler.running if s.num_uncomputed_tokens > 1]
        planned = plan(*args)  # type: ignore[arg-type]
        overtakings += sum(s.rank < max(begun, default=0) for s in planned.admitted)
        return planned

    engine.scheduler.plan = count  # type: ignore[method-assign]
    RandomOperations(engine, random.Random(1)).run(3_000)
    assert overtakings > 100


@pytest.mark.parametrize("n", [1, 2])
def test_blocks_found_again_after_a_preemption_are_no_hits(n: int) -> None:
    """Be it before the first token or after it: a prompt is looked up once."""
    engine, _ = make_engine(
        num_blocks=32, max_model_len=128, max_num_batched_tokens=8, enable_prompt_lookup=False
    )
    prompt = [(i * 7 + 3) % 97 for i in range(82)]
    engine.add(greedy("running", list(range(40)), max_tokens=60))
    for _ in range(6):
        engine.step()
    engine.add(greedy("new", prompt, max_tokens=4, n=n))
    outputs = run(engine)
    assert engine.counters.num_preemptions > 0
    for index in range(n):
        assert outputs["new", index][0].num_cached_tokens == 0
        assert text(outputs["new", index]) == continue_greedily(prompt, 4)
    assert engine.counters.num_prefix_cache_queries == 40 + 82
    assert engine.counters.num_prefix_cache_hits == 0


def test_a_text_that_becomes_a_long_one_counts_as_no_preemption() -> None:
    engine, _ = make_engine(num_blocks=100, max_model_len=300, rope_switch_len=60)
    engine.add(greedy("r", list(range(50)), max_tokens=20))
    assert len(text(run(engine)["r", 0])) == 20
    assert engine.counters.num_preemptions == 0


@pytest.mark.slow
def test_thousands_of_operations_around_the_length_of_long_texts() -> None:
    engine, _ = make_engine(
        num_blocks=40, max_model_len=80, max_num_batched_tokens=32, rope_switch_len=18
    )
    num_restarts = 0
    preempt = engine.scheduler._preempt

    def count(sequence: Sequence) -> None:
        nonlocal num_restarts
        num_restarts += 1
        preempt(sequence)

    engine.scheduler._preempt = count  # type: ignore[method-assign]
    RandomOperations(engine, random.Random(0)).run(3_000)
    assert num_restarts > 300
    assert engine.counters.num_preemptions == 0, "none was for want of blocks"
    assert engine.counters.num_prefix_cache_hits > 1000
    assert engine.counters.num_accepted_tokens > 300


def owned(owner: str, name: str, prompt: list[int], **params: object) -> GenerationRequest:
    return replace(greedy(name, prompt, **params), owner=owner, tenant=owner)


@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(20, 64), (400, 6)])
def test_a_stream_alone_with_its_owner_goes_on_beside_a_crowd(
    num_blocks: int, max_num_seqs: int
) -> None:
    """The cache, or the places, are too few for all."""
    engine, _ = make_engine(num_blocks=num_blocks, max_model_len=40, max_num_seqs=max_num_seqs)
    for number in range(8):
        engine.add(owned("many", f"many {number}", [number] * 6, max_tokens=24))
    for _ in range(4):
        engine.step()
    engine.add(owned("one", "one", [9] * 6, max_tokens=24))
    num_steps = 0
    while "one" in engine._requests:
        engine.step()
        engine.check()
        num_steps += 1
    assert num_steps <= 24, "it has a token in every step from the first on"
    assert engine.counters.num_preemptions > 0
    outputs = run(engine)
    assert all(of[-1].finish_reason is not None for of in outputs.values())


@pytest.mark.parametrize("max_num_seqs", [64, 2])
def test_requests_of_higher_priority_are_not_preempted_for_one_that_waits(
    max_num_seqs: int,
) -> None:
    """They would be admitted again before it, in every step, and nothing would progress."""
    engine, _ = make_engine(num_blocks=6, max_model_len=20, max_num_seqs=max_num_seqs)
    for name in ("a", "b"):
        engine.add(replace(owned("many", name, [ord(name)] * 6, max_tokens=5), priority=-1))
        engine.step()
    engine.add(owned("one", "one", [9] * 9, max_tokens=5))
    num_steps = 0
    while engine.has_work:
        engine.step()
        engine.check()
        num_steps += 1
        assert num_steps < 40
    assert engine.counters.num_preemptions == 0


def test_waiting_requests_take_turns_by_owner() -> None:
    engine, _ = make_engine(max_num_seqs=2)
    for number in range(4):
        engine.add(owned("many", f"many {number}", [1, 2], max_tokens=3))
    engine.add(owned("one", "one", [1, 2], max_tokens=3))
    order = list(dict.fromkeys(request_id for request_id, _ in run(engine)))
    assert order.index("one") < 2


def test_cached_tokens_of_another_tenant_are_used_and_not_reported() -> None:
    engine, model = make_engine()
    prompt, cached = list(range(20)), []
    for name, owner in enumerate(["a", "b", "b", "a"]):
        model.num_tokens_per_step.clear()
        engine.add(owned(owner, str(name), prompt, max_tokens=2))
        cached.append(run(engine)[str(name), 0][0].num_cached_tokens)
        assert model.num_tokens_per_step[0] == (20 if name == 0 else 4)
    assert cached == [0, 0, 16, 16]
