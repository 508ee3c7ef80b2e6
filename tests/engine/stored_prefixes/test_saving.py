from __future__ import annotations

import errno
import logging
import os
from array import array
from pathlib import Path

import pytest

from fastovms.engine.stored_prefixes import saving
from fastovms.engine.stored_prefixes.saving import MIN_PROMPT_TOKENS
from fastovms.prefix_cache.block_directory import BlockDirectory
from tests.engine.fake_model import VOCAB_SIZE
from tests.engine.stored_prefixes.stored_engine import StoredEngine, request, stored_engine

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
def test_what_is_worth_it_is_written(
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
def test_salted_prompts_are_kept_only_if_told(tmp_path: Path, keeps_salted: bool) -> None:
    with stored_engine(tmp_path, keeps_salted=keeps_salted) as engine:
        engine.ask(request("a", LONG, salt="s"))
    assert num_files(tmp_path) == 64 * keeps_salted


def test_what_is_left_is_written_at_the_end(tmp_path: Path) -> None:
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
    monkeypatch.setattr(saving, "_RETRY_AFTER", 0.0)
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


def test_nothing_is_written_at_the_end_of_an_engine_that_has_failed(tmp_path: Path) -> None:
    with stored_engine(tmp_path) as engine:
        engine.ask(request("a", LONG))
        engine.prefixes.close(flush=False)
        assert not engine.prefixes._saver._writer._thread.is_alive()
        assert not engine.prefixes._restorer._reader._thread.is_alive()
        assert num_files(tmp_path) < 2
