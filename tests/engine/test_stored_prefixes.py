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
from typing import Any

import pytest

from fastovms.engine.blocks import LONG_ROOT, ROOT
from fastovms.params import Adapter, GenerationRequest
from fastovms.parts.prefix_cache import stored_prefixes
from fastovms.parts.prefix_cache.directory import BlockDirectory
from fastovms.parts.prefix_cache.stored_prefixes import (
    MIN_PROMPT_TOKENS,
    JobThread,
    ModelBlocks,
    PrefixFiles,
    ReadingPolicy,
)
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, continue_greedily
from tests.engine.stored_engine import BLOCK_SIZE, request, stored_engine


def test_hanging_job_is_not_waited_for_and_a_failing_one_stops_no_other() -> None:
    thread = JobThread("jobs")
    started, go_on, dropped = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        go_on.wait(60)
        thread.pause(3600)

    thread.do(lambda: 1 // 0)
    thread.do(hang)
    thread.do(dropped.set)
    assert started.wait(60)
    assert not thread.close(0.01)
    go_on.set()
    assert thread.close(60), "its end cuts a pause"
    assert not dropped.is_set()


def test_blocks_of_adapters_are_kept_and_those_of_salts_are_not(tmp_path: Path) -> None:
    model = FakeModel(4, rope_switch_len=10)
    directory = BlockDirectory(tmp_path, 10_000)
    stored = ModelBlocks(model, PrefixFiles(directory, "0-m", b"f"))
    assert [stored.root(length) for length in (10, 11)] == [ROOT, LONG_ROOT]
    adapted = replace(request("r", [1]), adapter=Adapter("a", "", bytes(32), 1, 0))
    salts = (b"", adapted.prefix_salt, b"salt", replace(adapted, cache_salt="s").prefix_salt)
    assert [stored.is_kept(salt) for salt in salts] == [True, True, False, False]
    directory.close()


def test_unknown_costs_are_measured_by_reading() -> None:
    policy = ReadingPolicy()
    assert policy.is_worth_reading(1, 10**9)
    policy.learn_computed(63, 1.0)  # too few for an estimate
    assert policy.computing_seconds(100) is None
    assert policy.patience(100) == 5


def test_reading_policy_takes_the_faster_way() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 1.0)
    assert policy.is_worth_reading(1000, 900_000)
    assert not policy.is_worth_reading(1000, 1_100_000)
    assert policy.patience(3000) == 3
    assert policy.patience(30) == 0.5


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    policy = ReadingPolicy()
    policy.learn_computed(1000, 1.0)
    policy.learn_read(10**6, 5.0)
    answers = [policy.is_worth_reading(1000, 10**6) for _ in range(30)]
    assert not any(answers[:10])
    assert answers[-1]


PROMPT = [i * i % VOCAB_SIZE for i in range(MIN_PROMPT_TOKENS + 3)]
NUM_STORED = MIN_PROMPT_TOKENS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with the blocks of `PROMPT`."""
    with stored_engine(tmp_path) as first:
        assert first.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert first.num_restored == 0
    assert num_files(tmp_path) == 64
    return tmp_path


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that lets reads of any directory continue."""
    event, read = threading.Event(), BlockDirectory.read

    def slow(directory: BlockDirectory, *arguments: Any) -> int:
        assert event.wait(60)
        return read(directory, *arguments)

    monkeypatch.setattr(BlockDirectory, "read", slow)
    return event


def test_prompt_restored_from_disk_continues_with_the_same_tokens(path: Path) -> None:
    with stored_engine(path) as engine:
        assert engine.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored == NUM_STORED
        assert engine.engine.counters.num_prefix_cache_hits == NUM_STORED
        longer = [*PROMPT[:-10], *range(30)]
        assert engine.ask(request("b", longer)) == continue_greedily(longer, 4)
        assert engine.num_restored == NUM_STORED  # memory contains the others


@pytest.mark.parametrize(
    ("asked", "options", "num_read"),
    [
        (request("r", PROMPT, tenant="other"), {}, 0),
        (request("r", PROMPT, salt="salt"), {"keeps_salted": True}, 0),
        (request("r", PROMPT, prompt_logprobs=1), {}, 0),
        (request("r", [96, *PROMPT[1:]]), {}, 0),
        (request("r", PROMPT), {"fingerprint": b"another model"}, 0),
        (request("r", PROMPT), {"num_blocks": 72}, 63 * BLOCK_SIZE),  # an eighth remains free
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
        assert engine.prefixes.stats.num_corrupt == 1
    with stored_engine(path) as engine:  # the first one was written again
        assert engine.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert engine.num_restored > 0


def test_equal_prompts_wait_for_one_reading_while_others_run(
    path: Path, go_on: threading.Event
) -> None:
    with stored_engine(path) as engine:
        for name in "abc":
            engine.prefixes.add(request(name, PROMPT))
        engine.prefixes.abort("b")
        engine.prefixes.add(request("short", [1, 2, 3]))
        assert engine.prefixes.num_held == 2
        while engine.prefixes.has_work:
            engine.prefixes.step()
        assert engine.prefixes.num_held == 2
        go_on.set()
        assert engine.run() == dict.fromkeys("ac", continue_greedily(PROMPT, 4))
        assert engine.num_restored == NUM_STORED


@pytest.mark.parametrize("num_blocks", [66, 90, 128])
def test_a_disk_that_hangs_is_not_waited_for(
    path: Path, go_on: threading.Event, num_blocks: int
) -> None:
    with stored_engine(path, num_blocks=num_blocks) as engine:
        engine.prefixes.add(request("a", PROMPT))
        assert not engine.prefixes.has_work
        engine.fire_timers()
        assert engine.prefixes.has_work
        assert engine.run() == {"a": continue_greedily(PROMPT, 4)}
        go_on.set()
        engine.call_next()  # the reader returns too late
        engine.engine.blocks.check([])


def test_prompt_that_comes_while_the_reader_is_stuck_does_not_wait(
    path: Path, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadingPolicy, "is_worth_reading", lambda *_: True)
    with stored_engine(path, num_blocks=200) as engine:
        engine.prefixes.add(request("a", PROMPT))
        engine.fire_timers()
        engine.prefixes.add(request("b", PROMPT))
        assert engine.prefixes.num_held == 1, "a, which the next step takes"
        assert engine.run() == dict.fromkeys("ab", continue_greedily(PROMPT, 4))
        go_on.set()
        engine.call_next()


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


def test_each_request_waits_for_no_longer_than_it_may(path: Path, go_on: threading.Event) -> None:
    longer = [*PROMPT, 5]
    with stored_engine(path) as engine:
        engine.prefixes.add(request("a", PROMPT))
        [first] = engine.timers
        engine.prefixes.add(request("b", PROMPT))
        engine.prefixes.add(request("a2", longer))
        first()
        assert [r.request_id for r in engine.prefixes._restorer.take_ready()] == ["a"]
        assert engine.prefixes.num_held == 2
        engine.fire_timers()
        said = {"b": continue_greedily(PROMPT, 4), "a2": continue_greedily(longer, 4)}
        assert engine.run() == said
        go_on.set()


def test_running_request_is_not_preempted_for_restored_blocks(
    path: Path, go_on: threading.Event
) -> None:
    with stored_engine(path, num_blocks=80) as engine:
        for number in range(2):
            engine.prefixes.add(request(str(number), [number, *range(20)], max_tokens=100))
        engine.prefixes.step()
        engine.prefixes.add(request("a", PROMPT))
        while len(engine.engine.scheduler.running) == 2:
            engine.prefixes.step()
            engine.check()
        assert engine.engine.counters.num_preemptions == 0
        go_on.set()
        engine.run()


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
    monkeypatch.setattr(ReadingPolicy, "is_worth_reading", lambda *_: True)
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


def num_files(path: Path) -> int:
    return sum(len(files) for folder, _, files in os.walk(path) if folder != str(path))


@pytest.mark.parametrize(
    ("prompts", "num_blocks"),
    [
        ([PROMPT], 64),
        ([PROMPT, PROMPT], 64),
        ([PROMPT[:41]], 0),
        ([PROMPT[:41]] * 2, 10),
        ([PROMPT[:41], [*PROMPT[:20], 7]], 5),
    ],
)
def test_blocks_used_often_enough_are_written(
    tmp_path: Path, prompts: list[list[int]], num_blocks: int
) -> None:
    with stored_engine(tmp_path) as engine:
        for number, prompt in enumerate(prompts):
            engine.ask(request(str(number), prompt))
        engine.write_all()
        assert num_files(tmp_path) == num_blocks
        assert engine.prefixes.stats.num_blocks == num_blocks
        assert engine.prefixes.stats.num_bytes == engine.prefixes.stats.num_bytes_written


@pytest.mark.parametrize("keeps_salted", [False, True])
def test_salted_prompts_are_stored_only_if_enabled(tmp_path: Path, keeps_salted: bool) -> None:
    with stored_engine(tmp_path, keeps_salted=keeps_salted) as engine:
        engine.ask(request("a", PROMPT, salt="s"))
    assert num_files(tmp_path) == 64 * keeps_salted


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
        engine.ask(request("a", PROMPT))
        for _ in range(4):
            engine.call_next()
        assert len(caplog.records) == 1
        assert "No space left" in caplog.text
        fails = False
        engine.write_all()
    assert num_files(tmp_path) == 64, "the first block, too, without which the others are of no use"


def test_no_block_is_written_whose_predecessor_is_lost(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", PROMPT))
        lost = list(engine.prefixes._saver._wanted.values())[40]
        engine.engine.blocks.forget(array("i", [lost.block_id]))
        engine.write_all()
    assert num_files(tmp_path) == lost.position == 40


def test_close_without_flush_ends_threads_and_skips_pending_writes(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", PROMPT))
        engine.prefixes.close(flush=False)
        assert not engine.prefixes._saver._writer._thread.is_alive()
        assert not engine.prefixes._restorer._reader._thread.is_alive()
        assert num_files(tmp_path) < 2
