"""Threads with deep stacks."""

from __future__ import annotations

import ctypes
import threading

from fastovms.backends.processes.deep_stack import TRIAL_STACK, start_thread


def stack_size() -> int:
    """The bytes of the calling thread's stack, as the C library has them."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_ulong
    attributes, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes) == 0
    assert libc.pthread_attr_getstacksize(attributes, ctypes.byref(size)) == 0
    libc.pthread_attr_destroy(attributes)
    return size.value


def test_the_thread_has_several_times_the_stack_of_trials() -> None:
    before = threading.stack_size()
    found: list[int] = []
    thread = start_thread(lambda: found.append(stack_size()), name="deep")
    thread.join(10)
    assert found[0] >= 8 * TRIAL_STACK
    assert (thread.name, thread.daemon) == ("deep", True)
    assert threading.stack_size() == before
