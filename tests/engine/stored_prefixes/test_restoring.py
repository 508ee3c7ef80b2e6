from __future__ import annotations

import threading
from pathlib import Path

import pytest

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


def test_a_disk_that_hangs_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = SlowReads(monkeypatch)
    with stored_engine(path) as engine:
        engine.prefixes.add(request("a", PROMPT))
        for timer in engine.timers:
            timer()
        assert engine.prefixes.has_work
        texts: list[int] = []
        while engine.prefixes.has_work:
            texts += [t for _, output in engine.prefixes.step() for t in output.token_ids]
        assert texts == continue_greedily(PROMPT, 4)
        reads.go_on.set()
        engine.call_next()  # settles what was read after all
        engine.engine.blocks.check([])


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
