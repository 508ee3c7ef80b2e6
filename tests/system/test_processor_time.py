"""The time in which a process could run, of files as Linux has them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fastovms.system.processor_time import ProcessorTime
from tests.fake_cgroup import write_files


class Process:
    """A process, of which a test says what becomes of it.

    Attributes:
        used: its processor time.
        waited: how long each of its threads waited for a processor.
        counts_waits: whether its kernel counts that for each thread.
    """

    def __init__(self, root: Path, *, counts_waits: bool) -> None:
        self.root = root
        self.now = self.used = 100.0
        self.waited = {"10": 7.0, "11": 0.0}
        self.pressure = 50.0
        self.counts_waits = counts_waits
        self._write()
        self.time = ProcessorTime(
            lambda: self.now, own_clock=lambda: self.used, num_cpus=lambda: 2, root=root
        )
        self.time.take(1.0)

    def passed(self, seconds: float, *, used: float, waited: dict[str, float], others: float):
        self.now += seconds
        self.used += used
        self.pressure += others
        for thread, wait in waited.items():
            self.waited[thread] = self.waited.get(thread, 0.0) + wait
        self._write()
        return self.time.take(1.0)

    def _write(self) -> None:
        if self.counts_waits:
            for thread, wait in self.waited.items():
                directory = self.root / "proc/self/task" / thread
                write_files(directory, {"schedstat": f"5 {int(wait * 1e9)} 3"})
        total = int(self.pressure * 1e6)
        write_files(self.root / "proc/pressure", {"cpu": f"some avg10=9.00 total={total}\nfull"})


@pytest.mark.parametrize(
    ("seconds", "used", "waited", "others", "expected"),
    [
        pytest.param(1.0, 1.8, {"10": 0.1, "11": 0.05}, 0.1, 0.9, id="computes"),
        pytest.param(1.0, 0.001, {"10": 0.0}, 0.0, 1.0, id="deadlock"),
        pytest.param(1.0, 0.002, {"10": 0.02}, 1.0, 0.98, id="deadlock among burners"),
        pytest.param(1.0, 0.25, {"10": 0.02, "11": 0.88}, 1.0, 0.125, id="starved"),
        pytest.param(1.0, 0.1, {"12": 0.95}, 1.0, 0.05, id="starved new thread"),
        pytest.param(1.0, 2.0, {"10": 1.0, "11": 1.0}, 1.0, 1.0, id="all threads spin"),
        pytest.param(100.0, 0.1, {}, 0.0, 0.05, id="stopped"),
        pytest.param(5.0, 9.0, {}, 0.0, 1.0, id="the loop was late"),
        pytest.param(1.2, 0.0, {}, 0.0, 1.0, id="at most the interval"),
    ],
)  # fmt: skip
def test_take_counts_time_with_a_processor(tmp_path, seconds, used, waited, others, expected):
    process = Process(tmp_path, counts_waits=True)
    taken = process.passed(seconds, used=used, waited=waited, others=others)
    assert taken == pytest.approx(expected)


@pytest.mark.parametrize(
    ("used", "others", "expected"),
    [
        pytest.param(0.3, 0.9, 0.15, id="starved"),
        pytest.param(0.001, 0.9, 1.0, id="deadlock among burners"),
        pytest.param(1.0, 0.0, 1.0, id="computes"),
    ],
)
def test_pressure_counts_where_threads_have_no_schedstat(tmp_path, used, others, expected):
    process = Process(tmp_path, counts_waits=False)
    process.passed(1.0, used=0.0, waited={}, others=0.0)
    taken = process.passed(1.0, used=used, waited={}, others=others)
    assert taken == pytest.approx(expected)


def test_all_time_counts_without_proc(tmp_path):
    now = 0.0
    time = ProcessorTime(lambda: now, own_clock=lambda: 0.0, root=tmp_path)
    now = 1.0
    assert time.take(1.0) == 1.0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_all_time_counts_while_no_file_can_be_read(tmp_path, monkeypatch, number):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "none left")

    process = Process(tmp_path, counts_waits=True)
    with monkeypatch.context() as shortage:
        process.now += 1.0
        for name in ("listdir", "scandir"):
            shortage.setattr(os, name, fail)
        shortage.setattr(Path, "read_text", fail)
        assert process.time.take(1.0) == 1.0
    process.passed(1.0, used=0.0, waited={}, others=0.0)
    assert process.passed(1.0, used=0.5, waited={"10": 0.2}, others=0.0) == pytest.approx(0.8)
