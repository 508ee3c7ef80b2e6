"""Runs the steps of an engine on a thread, and passes requests and tokens between it and the event
loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from fastovms.backend import OutputCallback
from fastovms.backend_stats import STEP_BUCKETS, BackendStats, Histogram
from fastovms.errors import Overloaded, RequestError
from fastovms.fair_queue import Shares
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Image,
    ModelInfo,
)

logger = logging.getLogger(__name__)


class ThreadSemaphore:
    """A semaphore for threads, faster than `threading.Semaphore`, which is written in Python: each
    engine step acquires one."""

    def __init__(self, num: int) -> None:
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(num):
            self._free.put(None)

    def acquire(self) -> None:
        """Waits until there is a permit, and takes it."""
        self._free.get()

    def release(self) -> None:
        """Adds a permit."""
        self._free.put(None)


_STACK: Final = 32 * 2**20
"""The stack size in bytes of threads that use grammars. Only touched pages take memory."""

_STACK_SIZE_LOCK: Final = threading.Lock()
"""Held while Python's global setting of the stack size is changed."""


def start_thread(target: Callable[[], None], *, name: str) -> threading.Thread:
    """Starts a daemon thread with a stack several times larger than that of grammar trial
    processes.

    Grammar compilers recurse as deep as a grammar is nested, and a stack overflow ends the process.
    A grammar that passed its trial on the small stack is therefore safe on this larger one.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _STACK_SIZE_LOCK:
        previous = threading.stack_size(_STACK)  # applies to threads started later
        try:
            thread.start()
        finally:
            threading.stack_size(previous)
    return thread


class LoopLink:
    """Passes calls from a backend's threads to the event loop that started the backend.

    Attributes:
        is_started: whether `start` has been called.
        stopped: set on the loop when the threads have ended.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = asyncio.Event()

    @property
    def is_started(self) -> bool:
        """Whether `start` has been called."""
        return self._loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop. Raises RuntimeError if the backend has not been started."""
        if self._loop is None:
            raise RuntimeError("the backend has not been started")
        return self._loop

    def start(self) -> None:
        """Uses the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def call(self, callback: Callable[..., object], *args: object) -> None:
        """Calls a function on the loop, or does nothing if the loop has closed."""
        loop = self.loop
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            logger.debug("the event loop has closed before the backend's threads")

    async def wait(self, seconds: float) -> bool:
        """Waits for the threads to end, for at most this many seconds, so that a hanging step
        cannot block the shutdown. Returns whether they have ended."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return False
        return True


class ActiveEngines:
    """Counts the working engines and notifies watchers of each change. Thread-safe."""

    def __init__(self) -> None:
        self._num_working = 0
        self._watchers: list[Callable[[int], None]] = []
        self._changed = threading.Condition(threading.Lock())

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Calls `watcher` with the number of working engines, now and after each change, on the
        thread that made the change. `watcher` must not change the number itself."""
        with self._changed:
            self._watchers.append(watcher)
            watcher(self._num_working)

    def begin(self) -> None:
        """Records that an engine has work, until `end`."""
        self._add(1)

    def end(self) -> None:
        """Records that an engine has no more work."""
        self._add(-1)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Counts one working engine as idle while the context is open."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    def _add(self, difference: int) -> None:
        with self._changed:  # the lock is held during the calls, so that they are in order
            self._num_working += difference
            for watcher in self._watchers:
                watcher(self._num_working)
            self._changed.notify_all()

    def wait_for_rest(self, seconds: float) -> bool:
        """Waits until no engine has work, for at most this many seconds. Returns whether all are
        idle."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_working == 0, seconds)


SLICE_SHARE: Final = 0.45
"""The length of slices as a share of the duration of the engines' steps: one slice follows each
step."""

MIN_SLICE: Final = 0.003
"""The minimum length of a slice in seconds: shorter slices would mostly be switching overhead."""

MAX_SLICE: Final = 0.02
"""The maximum planned length of a slice in seconds while engines work."""

_NEWEST_SHARE: Final = 0.2
"""The weight of the newest step in the mean duration of steps."""


class ComputeTurn:
    """Alternates engine steps and slices of encoders' work, so that they do not compete for the
    CPU.

    Engines wait only for slices, not for each other. An encoder waits until each working engine has
    made a step since the last slice. Without encoders nothing waits. Thread-safe.
    """

    def __init__(
        self, engines: ActiveEngines, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._num_encoders = 0
        self._num_working = 0
        self._num_stepping = 0
        self._num_steps = 0
        self._steps_at_slice = 0
        self._is_slicing = False
        self._waiting: deque[object] = deque()  # a ticket for each waiting encoder
        self._step_seconds = 0.0
        engines.watch(self._set_working)

    def _set_working(self, num_working: int) -> None:
        with self._changed:
            self._num_working = num_working
            self._changed.notify_all()

    # Engines

    @contextmanager
    def step(self) -> Iterator[None]:
        """The context of an engine step. Waits at entry until the running slice ends."""
        if not self._num_encoders:
            yield
            return
        with self._changed:
            while self._is_slicing or (self._waiting and self._is_due):
                self._changed.wait()
            self._num_stepping += 1
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            with self._changed:
                self._num_stepping -= 1
                self._num_steps += 1
                mean = self._step_seconds or seconds
                self._step_seconds = mean + _NEWEST_SHARE * (seconds - mean)
                self._changed.notify_all()

    # Encoders

    def add_encoder(self) -> None:
        """Makes engines alternate with one more encoder, until `remove_encoder`."""
        with self._changed:
            self._num_encoders += 1

    def remove_encoder(self) -> None:
        """Ends the effect of one `add_encoder`."""
        with self._changed:
            self._num_encoders -= 1

    @property
    def slice_seconds(self) -> float | None:
        """The length of a slice in seconds; None = unlimited, because no engine has work."""
        if not self._num_working:
            return None
        return min(MAX_SLICE, max(MIN_SLICE, SLICE_SHARE * self._step_seconds))

    @contextmanager
    def slice(self) -> Iterator[None]:
        """The context of an encoder's slice. Waits at entry for the engines' steps, and for slices
        of encoders that came earlier."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._may_slice(ticket):
                    self._changed.wait()
                self._is_slicing = True
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_slicing = False
                self._steps_at_slice = self._num_steps
                self._changed.notify_all()

    def _may_slice(self, ticket: object) -> bool:
        is_free = not self._is_slicing and not self._num_stepping
        return is_free and self._is_due and self._waiting[0] is ticket

    @property
    def _is_due(self) -> bool:
        """Returns whether each working engine has made a step since the last slice."""
        return self._num_steps - self._steps_at_slice >= self._num_working


class StepReport(NamedTuple):
    """An engine's report of a step to the event loop.

    Attributes:
        admitted: the ids of the requests that left the queue for this step.
        started_at: seconds on the clock of `RequestsInFlight`.
        num_received: the number of submitted samples that the engine has received.
        seconds: the duration of the engine's step; None = no step was made.
    """

    outputs: Sequence[EngineOutput]
    admitted: Sequence[str]
    started_at: float
    stats: BackendStats
    num_received: int
    seconds: float | None = None


@dataclass(slots=True)
class _Request:
    """A request in flight.

    Attributes:
        unfinished: the indices of the unfinished samples.
        submitted_at: when it was queued; None once it runs.
        queue_time: seconds in the queue; None until known and after it was reported.
        on_end: called when the request is no longer in flight.
        owner: the API key or address whose share of the queue it uses.
        num_places: the number of its queue places; 0 once it has been admitted.
        images: the images of its prompt, until the engine has received them; until then they count
            towards `--max-image-memory`.
    """

    on_output: OutputCallback
    unfinished: set[int]
    submitted_at: float | None
    on_end: Callable[[], None] | None
    owner: str
    num_places: int
    images: Sequence[Image] = ()
    queue_time: float | None = None


class RequestsInFlight:
    """Passes each output to its request's callback. Used only on the event loop's thread.

    Args:
        max_num_waiting: the maximum number of one owner's samples that wait for their first step.
            Other owners have queue places of their own; see `Shares.of_places`.
        abort: aborts a request whose callback has failed.
        stats: the initial statistics.
    """

    def __init__(
        self,
        *,
        max_num_waiting: int,
        abort: Callable[[str], None],
        clock: Callable[[], float],
        stats: BackendStats | None = None,
    ) -> None:
        self._places = Shares.of_places(max_num_waiting)
        self._abort = abort
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._stats = stats or BackendStats()
        self._num_submitted = 0
        self._num_received = 0
        self._step_seconds: Histogram | None = None
        self._longest_step = 0.0

    @property
    def stats(self) -> BackendStats:
        """The statistics, with the samples that the engine has not received yet as waiting."""
        return replace(
            self._stats,
            num_waiting=self._num_waiting,
            step_seconds=self._step_seconds,
            longest_step_seconds=self._longest_step,
        )

    @property
    def _num_waiting(self) -> int:
        """The number of samples that have not started, including those not yet received by the
        engine."""
        return self._stats.num_waiting + self._num_submitted - self._num_received

    def add(
        self,
        request: GenerationRequest,
        on_output: OutputCallback,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Adds a request. Raises Overloaded if too many samples wait. `on_end` is called when the
        request is no longer in flight."""
        owner = request.owner or request.tenant
        if not self._places.may_take(owner):
            raise Overloaded(
                f"{self._places.used} requests are waiting, which is the limit; try again later"
            )
        assert request.request_id not in self._requests, "request ids are unique"
        self._requests[request.request_id] = _Request(
            on_output,
            set(range(request.params.n)),
            self._clock(),
            on_end,
            owner,
            request.params.n,
            request.prompt.images if request.prompt else (),
        )
        self._places.hold(owner, request.params.n)
        self._num_submitted += request.params.n

    def discard(self, request_id: str, index: int | None) -> bool:
        """Removes a request, or one of its samples (`index`), whose callback is then no longer
        called. Returns False if it is unknown."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if index is not None:
            request.unfinished.discard(index)
        if index is None or not request.unfinished:
            self._end(request_id, request)
        return True

    def deliver(self, step: StepReport) -> None:
        """Passes the outputs of a step to the callbacks of their requests. Never raises: an error
        of a callback ends only its own request."""
        self._stats = step.stats
        self._num_received = step.num_received
        if step.seconds is not None:
            self._record(step.seconds)
        for request_id in step.admitted:
            request = self._requests.get(request_id)
            if request is not None and request.submitted_at is not None:
                request.queue_time = step.started_at - request.submitted_at
                request.submitted_at = None
                request.images = ()
                self._leave_queue(request)
        for request_id, output in step.outputs:
            request = self._requests.get(request_id)
            if request is not None and output.index in request.unfinished:
                output.queue_time, request.queue_time = request.queue_time, None
                self._deliver(request_id, request, output)

    def _record(self, seconds: float) -> None:
        if self._step_seconds is None:
            self._step_seconds = Histogram(STEP_BUCKETS)
        self._step_seconds.observe(seconds)
        self._longest_step = max(self._longest_step, seconds)

    def end_all(self, reason: FinishReason, error: str | None) -> None:
        """Ends all requests in flight for the same reason, and calls their callbacks."""
        for request_id, request in list(self._requests.items()):
            for index in sorted(request.unfinished):
                # A callback may have ended its own request or others.
                if self._requests.get(request_id) is request:
                    output = GenerationOutput(index, (), reason, 0, error=error)
                    self._deliver(request_id, request, output)

    def _end(self, request_id: str, request: _Request) -> None:
        del self._requests[request_id]
        self._leave_queue(request)
        if request.on_end is not None:
            request.on_end()

    def _leave_queue(self, request: _Request) -> None:
        """Releases the queue places of a request. Once its first sample is admitted, the engine
        holds all of its samples."""
        self._places.give_back(request.owner, request.num_places)
        request.num_places = 0

    def _deliver(self, request_id: str, request: _Request, output: GenerationOutput) -> None:
        if output.finish_reason is not None:
            request.unfinished.discard(output.index)
            if not request.unfinished:
                self._end(request_id, request)
        try:
            request.on_output(output)
        except Exception:
            # An error of one request must not affect the others.
            logger.exception("request %s failed while its output was processed", request_id)
            self._abort(request_id)


def fit_cache(model: ModelInfo, num_tokens: int) -> ModelInfo:
    """Returns the model with its context length limited to `num_tokens`, the tokens of one sequence
    that the KV cache can hold, and with that reason for clients."""
    if num_tokens >= model.max_model_len:
        return model
    logger.warning(
        "context length reduced from %d to the %d tokens that the KV cache holds",
        model.max_model_len,
        num_tokens,
    )
    reason = (
        "The KV cache of this server holds no more; without that limit it would be "
        f"{model.max_model_len} tokens."
    )
    return replace(model, max_model_len=num_tokens, context_reason=reason)


def check_length(request: GenerationRequest, model: ModelInfo) -> None:
    """Raises RequestError if the prompt leaves no space for an answer in the context."""
    num_tokens = len(request.prompt_token_ids) + len(request.generated_token_ids)
    if num_tokens >= model.max_model_len:
        raise RequestError(
            f"the prompt has {num_tokens} tokens, which leaves no room to generate in the context "
            f"of {model.max_model_len} tokens",
            param="prompt",
            code="context_length_exceeded",
        )


@dataclass(frozen=True, slots=True)
class Submit:
    """The command to queue a request."""

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """The command to end a request, or one of its samples."""

    request_id: str
    index: int | None


@dataclass(frozen=True, slots=True)
class EngineCall:
    """The command to call a function on the engine's thread, between two steps."""

    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Close:
    """The command to end the loop."""


Command = Submit | Abort | EngineCall | Close


class SteppedEngine(Protocol):
    """The interface of an engine that `run_engine` uses."""

    @property
    def has_work(self) -> bool:
        """Whether there are requests that have not ended."""

    @property
    def admitted(self) -> Sequence[str]:
        """The ids of the requests that left the queue for the last step."""

    def add(self, request: GenerationRequest) -> None:
        """Queues a valid request."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one of its samples, without an output. Unknown ids are ignored."""

    def step(self) -> list[EngineOutput]:
        """Computes one step and returns its outputs."""


def run_engine(
    engine: SteppedEngine,
    *,
    receive: Callable[[bool], Iterable[Command]],
    take_stats: Callable[[], BackendStats],
    publish: Callable[[StepReport], None],
    clock: Callable[[], float],
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Runs an engine until `Close`. An exception in a step ends the loop.

    Args:
        receive: returns all pending commands; waits for one if its argument is true.
        publish: called after each step, and after commands without a step.
        turn: returns the context of each step.
    """
    num_received = 0
    while True:
        outputs: list[EngineOutput] = []
        for command in receive(not engine.has_work):
            if isinstance(command, Close):
                return
            if isinstance(command, EngineCall):
                command.function()
            elif isinstance(command, Abort):
                engine.abort(command.request_id, command.index)
            else:
                num_received += command.request.params.n
                outputs += add_request(engine, command.request)
            del command  # release the images of the request
        started_at = clock()
        admitted: Sequence[str] = ()
        seconds = None
        if engine.has_work:
            with turn():
                outputs += engine.step()
            seconds = clock() - started_at
            admitted = engine.admitted
        publish(StepReport(outputs, admitted, started_at, take_stats(), num_received, seconds))


def add_request(engine: SteppedEngine, request: GenerationRequest) -> list[EngineOutput]:
    """Queues a request. If it cannot be queued, only this request fails; the error is returned as
    its outputs."""
    try:
        engine.add(request)
    except Exception as error:
        logger.exception("request %s failed", request.request_id)
        return [
            EngineOutput(
                request.request_id,
                GenerationOutput(index, (), FinishReason.ERROR, 0, error=str(error)),
            )
            for index in range(request.params.n)
        ]
    return []
