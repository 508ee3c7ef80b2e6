"""A world with virtual time in which threads take turns, in an order chosen by a seed.

A simulated thread is a greenlet. It hands over to another one at its hand-over points: where it
locks, waits, queues or calls another thread. Time passes only while all threads wait, and a little
with each look at a clock.
"""

from __future__ import annotations

import heapq
import random
import sys
from asyncio import events
from collections.abc import Callable
from dataclasses import MISSING, fields
from hashlib import blake2b
from itertools import count
from typing import Any, Final

from greenlet import getcurrent, greenlet

NEVER: Final = float("inf")
_START: Final = 1_750_000_000.0
"""The Unix time at which worlds begin."""

_running: list[SimThread | None] = [None]


def current() -> SimThread | None:
    """Returns the simulated thread that runs; None = no world runs."""
    return _running[0]


def changed(one: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that are not as they are by default, for people."""
    found = {}
    for field in fields(one):
        has_factory = field.default_factory is not MISSING
        default = field.default_factory() if has_factory else field.default
        if (value := getattr(one, field.name)) != default:
            found[field.name] = value
    return found


def running() -> SimThread:
    """Returns the simulated thread that runs."""
    assert _running[0] is not None
    return _running[0]


class Killed(BaseException):
    """Ends the threads of a simulated process that is killed."""


class Process:
    """A simulated process: threads with a clock of their own that are killed together.

    Args:
        drift: how much faster its clock is than the world's, such as 1e-4.

    Attributes:
        clock_error: seconds by which its Unix time is wrong.
    """

    def __init__(self, world: World, name: str, *, drift: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.rate = 1.0 + drift
        self.threads: list[SimThread] = []
        self.is_dead = False
        self.clock_error = 0.0

    def monotonic(self) -> float:
        self.world.now += self.world.tick
        return self.world.now * self.rate

    def unix_time(self) -> float:
        return _START + self.monotonic() + self.clock_error

    def start(self, target: Callable[[], object], name: str) -> SimThread:
        return self.world.start(self, target, name)

    def kill(self) -> None:
        """Ends all of its threads where they wait. The calling thread must be another process's."""
        world, me = self.world, current()
        assert me is not None
        assert me.process is not self
        self.is_dead = True
        world.note("kill", self.name)
        while alive := [thread for thread in self.threads if not thread.has_ended]:
            for thread in alive:
                thread.until = NEVER
                thread.is_ready = True
                world.switch_to(thread)


class SimThread:
    """A thread of a simulated process.

    Attributes:
        is_ready: whether it may run.
        until: the time at which its wait ends by itself.
        joiners: the threads that wait for its end.
    """

    def __init__(self, world: World, process: Process, target: Callable[[], object], name: str):
        self.world = world
        self.process = process
        self.name = name
        self.number = next(world.numbers)
        self.is_ready = True
        self.until = NEVER
        self.was_woken = False
        self.has_ended = False
        self.weight = world.chance.choice(world.weights)
        self.joiners: list[SimThread] = []
        self._target = target
        self.greenlet = greenlet(self._run, world.hub)

    def _run(self, *_: object) -> None:
        _enter(self, None)
        try:
            if not self.process.is_dead:
                self._target()
        except Killed:
            pass
        except BaseException as error:  # a fault of the simulation, or of the product
            self.world.fail("thread", f"{self.name}: {type(error).__name__}: {error}", error)
        self.has_ended = True
        self.is_ready = False
        for thread in self.joiners:
            self.world.wake(thread)
        self.world.threads.remove(self)
        self.process.threads.remove(self)
        # What runs next, as this one returns.
        self.greenlet.parent = self.world.next_greenlet()


def _enter(thread: SimThread | None, loop: Any, hooks: Any = (None, None)) -> None:
    """Sets what asyncio and this module keep for each thread."""
    _running[0] = thread
    events._set_running_loop(loop)
    sys.set_asyncgen_hooks(*hooks)


class World:
    """Schedules the threads, and keeps the time.

    Args:
        seed: chooses the order of threads, and every other chance.

    Attributes:
        now: seconds since the beginning.
        tick: seconds that each look at a clock takes.
        failures: what has gone wrong, by its kind.
        trace: the hash of all that has happened.
    """

    def __init__(self, seed: int, *, record: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(f"order {seed}")
        self.secrets = random.Random(f"secrets {seed}")
        self.now = 1000.0
        self.tick = self.chance.choice((0.0, 1e-6, 1e-6, 1e-4, 1e-3))
        self.weights = self.chance.choice(((1.0,), (1.0,), (1.0, 10.0), (0.05, 1.0, 5.0)))
        self.pause_chance = self.chance.choice((0.02, 0.2, 0.5, 0.9))
        self.numbers = count()
        self.threads: list[SimThread] = []
        self.failures: list[tuple[str, str, BaseException | None]] = []
        self.trace = blake2b(digest_size=16)
        self.lines: list[str] | None = [] if record else None
        self.num_switches = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_numbers = count()
        self.hub = getcurrent()
        self._is_over = False

    # What happens

    def note(self, *words: object) -> None:
        """Adds a line to the trace."""
        line = f"{self.now:.6f} " + " ".join(map(str, words))
        self.trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def unix_time(self) -> float:
        return _START + self.now

    def fail(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Records that an invariant does not hold."""
        self.note("FAILURE", kind, text)
        self.failures.append((kind, text, error))

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Calls `event` at a time of the world, on the thread that looks for work then."""
        heapq.heappush(self._events, (max(when, self.now), next(self._event_numbers), event))

    # Threads

    def start(self, process: Process, target: Callable[[], object], name: str) -> SimThread:
        thread = SimThread(self, process, target, name)
        self.threads.append(thread)
        process.threads.append(thread)
        return thread

    def run(self, main: Callable[[], object], most_seconds: float) -> None:
        """Runs `main` in a process of its own, "world", until it returns.

        Args:
            most_seconds: virtual seconds that it may take.
        """
        self.at(self.now + most_seconds, self._give_up)
        process = Process(self, "world")

        def run_main() -> None:
            try:
                main()
            finally:
                self._is_over = True

        self.start(process, run_main, "main")
        self.next_greenlet().switch()
        self._end_all()
        _enter(None, None)

    def _give_up(self) -> None:
        waiting = [f"{thread.process.name}/{thread.name}" for thread in self.threads]
        self.fail("hang", f"the world does not come to its end: {', '.join(waiting)}")
        self._is_over = True

    def _end_all(self) -> None:
        for thread in list(self.threads):
            thread.process.is_dead = True
        while self.threads:
            self.threads[0].greenlet.switch()

    def pause(self) -> None:
        """A hand-over point: another thread may run now."""
        me = running()
        self._check(me)
        if self.chance.random() < self.pause_chance:
            self._hand_over(me)

    def block(self, until: float = NEVER) -> bool:
        """Waits until the thread is woken or the time has come. Returns whether it was woken."""
        me = running()
        self._check(me)
        me.is_ready = me.was_woken = False
        me.until = until
        self._hand_over(me)
        return me.was_woken

    def sleep(self, seconds: float) -> None:
        """Lets time pass for the calling thread."""
        until = self.now + seconds
        while self.now < until:
            self.block(until)

    def wake(self, thread: SimThread) -> None:
        if not thread.is_ready and not thread.has_ended:
            thread.is_ready = thread.was_woken = True
            thread.until = NEVER

    def switch_to(self, thread: SimThread) -> None:
        """Has a thread run until it hands over to any other one, which gives the baton back."""
        me = running()
        self._pass_on(me, thread)

    def next_greenlet(self) -> greenlet:
        """Returns what runs after a thread that ends."""
        thread = None if self._is_over else self._choose()
        return self.hub if thread is None else thread.greenlet

    def _check(self, me: SimThread) -> None:
        if me.process.is_dead:
            raise Killed

    def _hand_over(self, me: SimThread) -> None:
        self._pass_on(me, self._choose())

    def _pass_on(self, me: SimThread, thread: SimThread | None) -> None:
        if thread is not me:
            self.num_switches += 1
            loop, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
            (self.hub if thread is None else thread.greenlet).switch()
            _enter(me, loop, hooks)
        self._check(me)

    def _choose(self) -> SimThread | None:
        """Returns the thread that runs next; None = the world has ended."""
        events = self._events
        while not self._is_over:
            while events and events[0][0] <= self.now:
                heapq.heappop(events)[2]()
            now, ready = self.now, []
            next_at = events[0][0] if events else NEVER
            for thread in self.threads:
                if not thread.is_ready:
                    until = thread.until
                    if until > now:
                        if until < next_at:
                            next_at = until
                        continue
                    thread.is_ready, thread.until = True, NEVER
                ready.append(thread)
            if self._is_over:
                break
            if len(ready) == 1:
                return ready[0]
            if ready:
                chosen = self.chance.choices(ready, [thread.weight for thread in ready])[0]
                self.trace.update(b"%d" % chosen.number)
                return chosen
            if next_at == NEVER:
                self.fail("deadlock", "all threads wait for ever")
                self._is_over = True
                break
            self.now = next_at
        return None


# What the product's modules use in place of `threading`, `queue` and `ThreadPoolExecutor`.


class Lock:
    """A lock that hands over before it is taken."""

    def __init__(self) -> None:
        self.owner: SimThread | None = None
        self._waiting: list[SimThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = running()
        me.world.pause()
        until = NEVER if timeout < 0 else me.world.now + timeout
        while self.owner is not None and not self.owner.has_ended:
            if not blocking or me.world.now >= until:
                return False
            self._waiting.append(me)
            try:
                me.world.block(until)
            finally:
                self._waiting.remove(me)
        self.owner = me
        return True

    def release(self) -> None:
        self.owner = None
        for thread in self._waiting:
            thread.world.wake(thread)

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[SimThread] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = running()
        until = NEVER if timeout is None else me.world.now + timeout
        self._waiting.append(me)
        self._lock.release()
        try:
            woken = me.world.block(until)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = NEVER if timeout is None else running().world.now + timeout
        while not (result := predicate()):
            left = until - running().world.now
            if left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            thread.world.wake(thread)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._is_set, timeout))


class SimpleQueue:
    """Hands over after each `put` and before each `get`."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiting: list[SimThread] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        for thread in self._waiting[:1]:
            thread.world.wake(thread)
        if current() is not None:
            running().world.pause()

    def get(self) -> Any:
        me = running()
        me.world.pause()
        while not self._items:
            self._waiting.append(me)
            try:
                me.world.block()
            finally:
                self._waiting.remove(me)
        return self._items.pop(0)

    def empty(self) -> bool:
        if current() is not None:
            running().world.pause()
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Thread:
    """Stands for `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "thread",
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._call = lambda: target(*args, **(kwargs or {}))
        self._thread: SimThread | None = None

    def start(self) -> None:
        me = running()
        if me.process.is_dead:
            raise Killed
        self._thread = me.process.start(self._call, self.name)

    def join(self, timeout: float | None = None) -> None:
        me, thread = current(), self._thread
        assert me is not None
        assert thread is not None
        until = NEVER if timeout is None else me.world.now + timeout
        while not thread.has_ended and me.world.now < until:
            thread.joiners.append(me)
            try:
                me.world.block(until)
            finally:
                thread.joiners.remove(me)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.has_ended


class Executor:
    """Stands for `ThreadPoolExecutor`; used by `SimLoop.run_in_executor`."""

    def __init__(self, max_workers: int = 8, *_: object, **__: object) -> None:
        self._num_free = max_workers
        self._jobs: list[Callable[[], object]] = []
        self._num_running = 0
        self._idle = Condition()

    def run(self, job: Callable[[], object]) -> None:
        """Runs a job in a thread, when one is free."""
        me = running()
        self._jobs.append(job)
        if self._num_free:
            self._num_free -= 1
            me.process.start(self._work, "executor")

    def _work(self) -> None:
        while self._jobs:
            self._jobs.pop(0)()
        self._num_free += 1
        with self._idle:
            self._idle.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._jobs.clear()
        if wait and current() is not None:
            with self._idle:
                self._idle.wait_for(lambda: not self._jobs)
