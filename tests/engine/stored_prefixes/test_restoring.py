from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from fastovms.engine.stored_prefixes.reading_policy import ReadingPolicy
from fastovms.engine.stored_prefixes.saving import MIN_PROMPT_TOKENS
from fastovms.params import GenerationRequest
from fastovms.prefix_cache.block_directory import BlockDirectory
from tests.engine.fake_model import VOCAB_SIZE, continue_greedily
from tests.engine.stored_prefixes.stored_engine import BLOCK_SIZE, request, stored_engine

PROMPT = [i * i % VOCAB_SIZE for i in range(MIN_PROMPT_TOKENS + 3)]
NUM_STORED = MIN_PROMPT_TOKENS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with the blocks of `PROMPT`."""
    with stored_engine(tmp_path) as first:
        assert first.ask(request("a", PROMPT)) == continue_greedily(PROMPT, 4)
        assert first.num_restored == 0
    return tmp_path


def test_a_prompt_is_read_and_goes_on_as_if_it_had_been_computed(path: Path) -> None:
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
def test_what_is_not_read(
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
            assert self.go_on.wait(5)
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


def test_what_runs_is_not_preempted_for_what_is_read(
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


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    permits = threading.Semaphore(0)
    read = BlockDirectory.read

    def slow(directory: BlockDirectory, *arguments: object) -> int:
        assert permits.acquire(timeout=20)
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
