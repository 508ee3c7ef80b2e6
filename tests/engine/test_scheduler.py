"""Tests of `fastovms/engine/scheduler.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.backend_stats import EngineCounters
from fastovms.engine.blocks import LONG_ROOT, ROOT, BlockManager
from fastovms.engine.scheduler import BlockTables, Plan, WaitingQueue, rank_of
from fastovms.engine.sequence import Sequence, SequenceStatus
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine.engines import greedy, run, text
from tests.engine.fake_model import continue_greedily
from tests.engine.test_engine import make_engine


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


# The blocks of sequences: shared ones, new ones, and none if too few are free.


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
    """Returns a sequence with all tokens but the last computed."""
    first = block_tables_sequence(num_tokens)
    assert made.give_blocks(first, Plan())
    first.status = SequenceStatus.RUNNING
    first.num_computed_tokens = num_tokens - 1
    made.register_full_blocks(first)
    return first


def test_prompt_with_prompt_logprobs_does_not_use_cached_blocks() -> None:
    made, _, counters = tables()
    computed(made, 10)
    second = block_tables_sequence(10, prompt_logprobs=1)
    assert made.give_blocks(second, Plan())
    assert (second.num_computed_tokens, counters.num_prefix_cache_hits) == (0, 0)


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


@pytest.mark.parametrize("n", [1, 2])
def test_blocks_found_again_after_a_preemption_are_no_hits(n: int) -> None:
    """A preemption before the first token or after it: a prompt is looked up only once."""
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


def owned(owner: str, name: str, prompt: list[int], **params: object) -> GenerationRequest:
    return replace(greedy(name, prompt, **params), owner=owner, tenant=owner)


@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(20, 64), (400, 6)])
def test_a_stream_alone_with_its_owner_goes_on_beside_a_crowd(
    num_blocks: int, max_num_seqs: int
) -> None:
    """The cache or the places do not suffice for all."""
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
    """They would be admitted again before it in every step, and no request would progress."""
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


def test_cached_tokens_of_another_tenant_are_used_and_not_reported() -> None:
    engine, model = make_engine()
    prompt, cached = list(range(20)), []
    for name, owner in enumerate(["a", "b", "b", "a"]):
        model.num_tokens_per_step.clear()
        engine.add(owned(owner, str(name), prompt, max_tokens=2))
        cached.append(run(engine)[str(name), 0][0].num_cached_tokens)
        assert model.num_tokens_per_step[0] == (20 if name == 0 else 4)
    assert cached == [0, 0, 16, 16]
