from __future__ import annotations

import threading
import time

from fastovms.engine.stored_prefixes.job_thread import JobThread


def test_jobs_run_in_order_and_a_failing_one_ends_nothing() -> None:
    done: list[int] = []
    thread = JobThread("jobs")
    thread.do(lambda: done.append(1))
    thread.do(lambda: done.append(1 // 0))
    last = threading.Event()
    thread.do(last.set)
    assert last.wait(5)
    assert done == [1]
    assert thread.close(5)


def test_its_end_cuts_a_pause_and_drops_what_waits() -> None:
    thread = JobThread("jobs")
    paused, dropped = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        thread.pause(60)

    thread.do(pause)
    thread.do(dropped.set)
    assert paused.wait(5)
    start = time.monotonic()
    assert thread.close(5)
    assert time.monotonic() - start < 5
    assert not dropped.is_set()


def test_a_job_that_hangs_is_not_waited_for() -> None:
    thread = JobThread("jobs")
    started, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        go_on.wait(10)

    thread.do(hang)
    assert started.wait(5)
    assert not thread.close(0.01)
    go_on.set()
    assert thread.close(5)
