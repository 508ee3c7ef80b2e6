from __future__ import annotations

import threading

from fastovms.backends.engine_thread.permits import Permits


def test_whoever_finds_none_waits_for_one() -> None:
    permits = Permits(2)
    taken = threading.Semaphore(0)

    def take_three() -> None:
        for _ in range(3):
            permits.acquire()
            taken.release()

    thread = threading.Thread(target=take_three)
    thread.start()
    assert taken.acquire(timeout=5)
    assert taken.acquire(timeout=5)
    assert not taken.acquire(timeout=0.05)
    permits.release()
    assert taken.acquire(timeout=5)
    thread.join()
