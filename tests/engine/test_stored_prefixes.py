"""Tests of `fastovms/parts/prefix_cache/stored_prefixes.py`."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from array import array
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.engine.blocks import LONG_ROOT, ROOT, BlockManager
from fastovms.params import Adapter, GenerationRequest, SamplingParams
from fastovms.parts.prefix_cache import stored_prefixes
from fastovms.parts.prefix_cache.directory import BlockDirectory, PrefixNamespace
from fastovms.parts.prefix_cache.stored_prefixes import (
    MIN_PROMPT_TOKENS,
    JobThread,
    ModelBlocks,
    PrefixFiles,
    ReadingPolicy,
    Restoration,
)
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily
from tests.engine.stored_engine import BLOCK_SIZE, StoredEngine, request, stored_engine


def test_failing_job_does_not_stop_later_jobs() -> None:
    done: list[int] = []
    thread = JobThread("jobs")
    thread.do(lambda: done.append(1))
    thread.do(lambda: done.append(1 // 0))
    last = threading.Event()
    thread.do(last.set)
    assert last.wait(60)
    assert done == [1]
    assert thread.close(60)


def test_its_end_cuts_a_pause_and_drops_what_waits() -> None:
    thread = JobThread("jobs")
    paused, dropped = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        thread.pause(3600)

    thread.do(pause)
    thread.do(dropped.set)
    assert paused.wait(60)
    assert thread.close(60)
    assert not dropped.is_set()


def test_a_job_that_hangs_is_not_waited_for() -> None:
    thread = JobThread("jobs")
    started, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        go_on.wait(60)

    thread.do(hang)
    assert started.wait(60)
    assert not thread.close(0.01)
    go_on.set()
    assert thread.close(60)


def test_a_block_moves_to_disk_and_back(tmp_path: Path) -> None:
    model = FakeModel(4, rope_switch_len=10)
    model.allocate_cache(3)
    directory = BlockDirectory(tmp_path, 10_000)
    stored = ModelBlocks(model, PrefixFiles(directory, "0-m", b"f"))
    [key] = stored.keys(array("q", range(7)), PrefixNamespace("", b"", stored.root(7)))
    model.block_rows(1)[0][:] = range(32)
    assert stored.write(key, stored.copy(1), 0) > 0
    assert stored.read(key, 0) > 0
    assert stored.copy(2).tolist() != list(range(32))
    stored.put_read(2)
    assert stored.copy(2).tolist() == list(range(32))
    assert [stored.root(length) for length in (10, 11)] == [ROOT, LONG_ROOT]
    assert stored.is_kept(b"")
    assert not stored.is_kept(b"salt")
    adapter = Adapter("a", "", bytes(32), 1, 0)
    adapted = GenerationRequest("r", [1], SamplingParams(), adapter=adapter)
    assert stored.is_kept(adapted.prefix_salt)
    assert not stored.is_kept(replace(adapted, cache_salt="s").prefix_salt)
    directory.close()


def test_unknown_costs_are_measured_by_reading() -> None:
    policy = ReadingPolicy()
    assert policy.pays(1, 10**9)
    policy.learn_computed(63, 1.0)  # too few to tell
    assert policy.computing_seconds(100) is None
    assert policy.patience(100) == 5


def test_the_faster_way_is_taken() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 1.0)
    assert policy.pays(1000, 900_000)
    assert not policy.pays(1000, 1_100_000)
    assert policy.patience(3000) == 3
    assert policy.patience(30) == 0.5


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 5.0)
    answers = [policy.pays(1000, 10**6) for _ in range(30)]
    assert not any(answers[:10])
    assert answers[-1]


TOKENS = array("q", range(12))


@pytest.fixture
def blocks() -> BlockManager:
    return BlockManager(8, 4)


@pytest.fixture
def restoration(blocks: BlockManager) -> Restoration:
    """One that reads two blocks behind one that memory has."""
    table = array("i", [blocks.allocate() for _ in range(3)])
    node = blocks.register(table[0], ROOT, TOKENS[:4])
    return Restoration([b"1", b"2"], token_ids=TOKENS, salt=b"", block_table=table, node=node)


@pytest.mark.parametrize("num_filled", range(3))
@pytest.mark.parametrize("keep", [False, True])
def test_ended_restoration_keeps_filled_blocks_only_on_request(
    blocks: BlockManager, restoration: Restoration, num_filled: int, keep: bool
) -> None:
    filled: list[int] = []
    assert restoration.num_matched == 1
    for _ in range(num_filled):
        assert restoration.fill_next(filled.append)
    assert filled == [1, 2][:num_filled]
    assert not restoration.has_ended
    assert restoration.end(blocks, keep=keep) == num_filled * keep
    blocks.check([])
    assert len(blocks.match_prefix(array("q", range(13))).block_ids) == 1 + num_filled * keep
    assert restoration.has_ended
    assert not restoration.fill_next(filled.append), "the blocks are another's"
    assert len(filled) == num_filled
    assert restoration.end(blocks, keep=False) == 0
    blocks.check([])


PROMPT = [i * i % VOCAB_SIZE for i in range(MIN_PROMPT_TOKENS + 3)]
NUM_STORED = MIN_PROMPT_TOKENS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with the blocks of `PROMPT`."""
    with stored_engine(tmp_path) as first:
        assert first.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert first.num_restored == 0
    return tmp_path


def test_prompt_restored_from_disk_continues_with_the_same_tokens(path: Path) -> None:
    with stored_engine(path) as engine:
        assert engine.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored == NUM_STORED
        assert engine.engine.counters.num_prefix_cache_hits == NUM_STORED
        longer = [*PROMPT[:-10], *range(30)]
        assert engine.ask(request("b", longer)) == continue_greedily(longer, 4)
        assert engine.num_restored == NUM_STORED  # memory has the rest


def test_only_what_memory_lacks_is_read(path: Path) -> None:
    with stored_engine(path) as engine:
        engine.ask(request("a", [*PROMPT[:40], 1, 2]))
        read_before = engine.num_restored
        assert engine.ask(request("b", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored == NUM_STORED
        assert read_before == 40


@pytest.mark.parametrize(
    ("asked", "options", "num_read"),
    [
        (request("r", PROMPT, tenant="other"), {}, 0),
        (request("r", PROMPT, salt="salt"), {"keeps_salted": True}, 0),
        (request("r", PROMPT, prompt_logprobs=1), {}, 0),
        (request("r", [96, *PROMPT[1:]]), {}, 0),
        (request("r", PROMPT), {"fingerprint": b"another model"}, 0),
        (request("r", PROMPT), {"num_blocks": 72}, 63 * BLOCK_SIZE),  # an eighth stays free
    ],
)
def test_blocks_that_do_not_match_are_not_read(
    path: Path, asked: GenerationRequest, options: dict[str, object], num_read: int
) -> None:
    with stored_engine(path, **options) as engine:
        assert engine.ask(asked) == continue_greedily(asked.prompt_token_ids, 4)
        assert engine.num_restored == num_read


@pytest.mark.parametrize("damage", [0, 20, -1])
def test_a_damaged_block_is_computed_again(path: Path, damage: int) -> None:
    for number, file in enumerate(sorted((path / "0-m").iterdir())):
        if number % 10 == 0:
            content = bytearray(file.read_bytes())
            content[damage] ^= 1
            file.write_bytes(content)
    with stored_engine(path) as engine:
        assert engine.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored < NUM_STORED
        assert engine.prefixes.stats.num_damaged == 1
    with stored_engine(path) as engine:  # the first one was written again
        assert engine.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored > 0


class SlowReads:
    """Reads of any directory that wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        read = BlockDirectory.read

        def slow(directory: BlockDirectory, *arguments: object) -> int:
            assert self.go_on.wait(60)
            return read(directory, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockDirectory, "read", slow)


def test_others_go_on_and_equal_prompts_wait_for_one_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch)
    with stored_engine(path) as engine:
        for name in "abc":
            engine.prefixes.add(request(name, PROMPT))
        engine.prefixes.abort("b")
        engine.prefixes.add(request("short", [1, 2, 3]))
        assert engine.prefixes.num_held == 2
        while engine.prefixes.has_work:
            engine.prefixes.step()
        assert engine.prefixes.num_held == 2
        reads.go_on.set()
        assert engine.run() == dict.fromkeys("ac", continue_greedily(PROMPT, 4))
        assert engine.num_restored == NUM_STORED


@pytest.mark.parametrize("num_blocks", [66, 75, 90, 110, 128, 140])
def test_a_disk_that_hangs_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, num_blocks: int
) -> None:
    reads = SlowReads(monkeypatch)
    with stored_engine(path, num_blocks=num_blocks) as engine:
        engine.prefixes.add(request("a", PROMPT))
        assert not engine.prefixes.has_work
        engine.fire_timers()
        assert engine.prefixes.has_work
        assert engine.run() == {"a": continue_greedily(PROMPT, 4)}
        reads.go_on.set()
        engine.call_next()  # the reader comes back, too late
        engine.engine.blocks.check([])


def test_whoever_comes_while_the_reader_is_stuck_need_not_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch)
    monkeypatch.setattr(ReadingPolicy, "pays", lambda *_: True)
    with stored_engine(path, num_blocks=200) as engine:
        engine.prefixes.add(request("a", PROMPT))
        engine.fire_timers()
        engine.prefixes.add(request("b", PROMPT))
        assert engine.prefixes.num_held == 1, "a, which the next step takes"
        assert engine.run() == dict.fromkeys("ab", continue_greedily(PROMPT, 4))
        reads.go_on.set()
        engine.call_next()
        engine.ask(request("long", [1] * 780))  # takes all blocks
        engine.prefixes.add(request("c", PROMPT))
        assert engine.prefixes.num_held == 1, "the reader is back"
        assert engine.run() == {"c": continue_greedily(PROMPT, 4)}


def test_each_request_waits_for_no_longer_than_it_may(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch)
    with stored_engine(path) as engine:
        engine.prefixes.add(request("a", PROMPT))
        [first] = engine.timers
        engine.prefixes.add(request("b", PROMPT))
        engine.prefixes.add(request("a2", [*PROMPT, 5]))
        first()
        assert [r.request_id for r in engine.prefixes._restorer.take_ready()] == ["a"]
        assert engine.prefixes.num_held == 2
        engine.fire_timers()
        assert engine.run() == {
            "b": continue_greedily(PROMPT, 4),
            "a2": continue_greedily([*PROMPT, 5], 4),
        }
        reads.go_on.set()


def test_a_prompt_that_needs_the_blocks_that_are_read_into_has_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch)
    long = [5, *(i % VOCAB_SIZE for i in range(150))]
    with stored_engine(path, num_blocks=90) as engine:
        engine.prefixes.add(request("a", PROMPT))
        engine.prefixes.add(request("b", long))
        engine.prefixes.step()
        assert {s.request_id for s in engine.engine.scheduler.running} == {"b"}
        assert engine.run() == {
            "a": continue_greedily(PROMPT, 4),
            "b": continue_greedily(long, 4)[1:],
        }
        reads.go_on.set()


def test_running_request_is_not_preempted_for_restored_blocks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = SlowReads(monkeypatch)
    prompts = [[number, *range(20)] for number in range(2)]
    with stored_engine(path, num_blocks=80) as engine:
        for number, prompt in enumerate(prompts):
            engine.prefixes.add(request(str(number), prompt, max_tokens=100))
        texts = engine.prefixes.step()
        engine.prefixes.add(request("a", PROMPT))
        for _ in range(150):
            texts += engine.prefixes.step()
            engine.check()
            if len(engine.engine.scheduler.running) < 2:
                break
        assert engine.engine.counters.num_preemptions == 0
        reads.go_on.set()
        engine.run()


@pytest.mark.slow
def test_blocks_are_taken_when_the_reader_comes_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = {str(i): [i, *PROMPT] for i in range(4)}
    with stored_engine(tmp_path) as engine:
        for name, prompt in prompts.items():
            engine.ask(request(name, prompt))
            while engine.prefixes.is_writing:
                engine.call_next()
    reads = SlowReads(monkeypatch)
    with stored_engine(tmp_path, num_blocks=400) as engine:
        for name, prompt in prompts.items():
            engine.prefixes.add(request(name, prompt))
        assert engine.prefixes.num_held == 4
        assert engine.engine.blocks.num_free_blocks == 400 - 2 * 64
        reads.go_on.set()
        assert engine.run() == {
            name: continue_greedily(prompt, 4) for name, prompt in prompts.items()
        }
        assert engine.num_restored == 4 * NUM_STORED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_operations_with_stored_prefixes_give_correct_texts(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    permits = threading.Semaphore(0)
    read = BlockDirectory.read

    def slow(directory: BlockDirectory, *arguments: object) -> int:
        assert permits.acquire(timeout=60)
        return read(directory, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockDirectory, "read", slow)
    monkeypatch.setattr(ReadingPolicy, "pays", lambda *_: True)
    num_blocks = rng.randrange(66, 140)
    expected: dict[str, list[int]] = {}
    texts: dict[str, list[int]] = defaultdict(list)
    aborted = set()

    def step() -> None:
        if engine.prefixes.has_work:
            for name, output in engine.prefixes.step():
                assert output.error is None
                texts[name].extend(output.token_ids)

    with stored_engine(path, num_blocks=num_blocks) as engine:
        for number in range(300):
            operation = rng.choice(["add", "add", "abort", "read", "call", "fire", *["step"] * 8])
            if operation == "add" and len(engine.engine.scheduler.waiting) < 6:
                cut = rng.randrange(1, len(PROMPT))
                prompt = rng.choice(
                    [PROMPT, PROMPT[:cut], [*PROMPT[:cut], 1, 2, 3], [cut % 97] * cut]
                )
                length = rng.choice([1, 4, 60])
                asked = request(str(number), prompt, max_tokens=length)
                engine.prefixes.add(asked)
                room = num_blocks * BLOCK_SIZE - len(prompt)
                expected[str(number)] = continue_greedily(prompt, min(length, room))
            elif operation == "abort" and expected:
                name = rng.choice(list(expected))
                engine.prefixes.abort(name)
                aborted.add(name)
            elif operation == "read":
                for _ in range(rng.randrange(40)):
                    permits.release()
                time.sleep(0.001)
            elif operation == "call" and not engine.calls.empty():
                engine.call_next()
            elif operation == "fire":
                engine.fire_timers()
            step()
            engine.check()
        permits.release(10_000)
        for name, text in engine.run().items():
            texts[name] += text
        assert {name: texts[name] for name in expected if name not in aborted} == {
            name: text for name, text in expected.items() if name not in aborted
        }


def test_samples_that_are_aborted_while_they_wait_do_not_run(path: Path) -> None:
    with stored_engine(path) as engine:
        engine.prefixes.add(request("a", PROMPT, n=3))
        assert engine.prefixes.num_held == 3
        engine.prefixes.abort("a", 1)
        engine.run()
        assert engine.engine.counters.num_generated_tokens == 8
        engine.prefixes.add(request("b", PROMPT[:100]))
        engine.prefixes.abort("b")
        assert engine.run() == {}


LONG = [i * i % VOCAB_SIZE for i in range(MIN_PROMPT_TOKENS + 1)]
SHORT = LONG[:41]


def num_files(path: Path) -> int:
    return sum(len(files) for folder, _, files in os.walk(path) if folder != str(path))


def write_all(engine: StoredEngine) -> None:
    """Does what the writer calls for until it stops calling."""
    while engine.prefixes.is_writing:
        engine.call_next()


@pytest.mark.parametrize(
    ("prompts", "num_blocks"),
    [
        ([LONG], 64),
        ([LONG, LONG], 64),
        ([SHORT], 0),
        ([SHORT, SHORT], 10),
        ([SHORT, [*SHORT[:20], 7]], 5),
    ],
)
def test_blocks_used_often_enough_are_written(
    tmp_path: Path, prompts: list[list[int]], num_blocks: int
) -> None:
    with stored_engine(tmp_path) as engine:
        for number, prompt in enumerate(prompts):
            engine.ask(request(str(number), prompt))
        write_all(engine)
        assert num_files(tmp_path) == num_blocks
        assert engine.prefixes.stats.num_blocks == num_blocks
        assert engine.prefixes.stats.num_bytes == engine.prefixes.stats.num_bytes_written


@pytest.mark.parametrize("keeps_salted", [False, True])
def test_salted_prompts_are_stored_only_if_enabled(tmp_path: Path, keeps_salted: bool) -> None:
    with stored_engine(tmp_path, keeps_salted=keeps_salted) as engine:
        engine.ask(request("a", LONG, salt="s"))
    assert num_files(tmp_path) == 64 * keeps_salted


def test_remaining_blocks_are_written_at_the_end(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        assert num_files(tmp_path) < 64
    assert num_files(tmp_path) == 64


def test_blocks_that_were_evicted_are_not_written(tmp_path: Path) -> None:
    with stored_engine(tmp_path, num_blocks=200) as engine:
        engine.ask(request("a", LONG))
        engine.ask(request("b", [1] * 780))
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        assert engine.num_restored == 0


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError("No space left")]
)
def test_a_disk_that_fails_costs_a_line_and_is_tried_again_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    fails = True
    write = BlockDirectory.write

    def failing(directory: BlockDirectory, *arguments: object) -> int:
        if fails:
            raise error
        return write(directory, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockDirectory, "write", failing)
    monkeypatch.setattr(stored_prefixes, "_RETRY_AFTER", 0.0)
    with stored_engine(tmp_path) as engine, caplog.at_level(logging.WARNING):
        engine.ask(request("a", LONG))
        for _ in range(4):
            engine.call_next()
        assert len(caplog.records) == 1
        assert "No space left" in caplog.text
        fails = False
        write_all(engine)
    assert num_files(tmp_path) == 64, "the first block, too, without which the others are of no use"


def test_no_block_is_written_whose_predecessor_is_lost(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        lost = list(engine.prefixes._saver._wanted.values())[40]
        engine.engine.blocks.forget(array("i", [lost.block_id]))
        write_all(engine)
    assert num_files(tmp_path) == lost.position == 40


def test_the_end_writes_what_the_writer_has_not_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        saver = engine.prefixes._saver
        monkeypatch.setattr(saver._writer, "do", lambda _: None)
        engine.call_next()
        assert saver._at_writer is not None
    assert num_files(tmp_path) == 64


def test_close_without_flush_ends_threads_and_skips_pending_writes(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        engine.prefixes.close(flush=False)
        assert not engine.prefixes._saver._writer._thread.is_alive()
        assert not engine.prefixes._restorer._reader._thread.is_alive()
        assert num_files(tmp_path) < 2
