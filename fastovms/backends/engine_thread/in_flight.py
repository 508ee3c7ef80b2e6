"""Keeps track, on the event loop, of the requests that an engine has, and hands each its outputs;
refuses one too many with 429."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastovms.backend import OutputCallback
from fastovms.backend_stats import STEP_BUCKETS, BackendStats
from fastovms.errors import Overloaded, RequestError
from fastovms.params import (
    EngineOutput,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    Image,
    ModelInfo,
)
from fastovms.telemetry.series import Histogram

logger = logging.getLogger(__name__)


class StepReport(NamedTuple):
    """What an engine tells the loop of a step.

    Attributes:
        admitted: the requests that left the queue for this step.
        started_at: seconds on the clock of `RequestsInFlight`.
        num_received: how many submitted samples the engine has got to know.
        seconds: how long the engine's step took; None = it has not made one.
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
        on_output: whom to tell.
        unfinished: the samples that have not finished.
        submitted_at: when it joined the queue; None once it has left it.
        queue_time: how many seconds it was there; None until known, and once it was told.
        images: those of its prompt, until the engine has taken them: so long they count for
            `--max-image-memory`.
    """

    on_output: OutputCallback
    unfinished: set[int]
    submitted_at: float | None
    images: Sequence[Image] = ()
    queue_time: float | None = None


class RequestsInFlight:
    """Hands every output to whom it concerns. All of it runs on the loop's thread.

    Args:
        max_num_waiting: how many samples may wait to run.
        abort: ends a request whose listener has failed.
        stats: those of an engine that has not begun.
    """

    def __init__(
        self,
        *,
        max_num_waiting: int,
        abort: Callable[[str], None],
        clock: Callable[[], float],
        stats: BackendStats | None = None,
    ) -> None:
        self._max_num_waiting = max_num_waiting
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
        return replace(
            self._stats,
            num_waiting=self._num_waiting,
            step_seconds=self._step_seconds,
            longest_step_seconds=self._longest_step,
        )

    @property
    def _num_waiting(self) -> int:
        """How many samples do not run yet, those still on their way to the engine included."""
        return self._stats.num_waiting + self._num_submitted - self._num_received

    def add(self, request: GenerationRequest, on_output: OutputCallback) -> None:
        """Takes a request in.

        Raises:
            Overloaded: too many samples wait.
        """
        if self._num_waiting >= self._max_num_waiting:
            raise Overloaded(
                f"{self._num_waiting} requests are waiting, which is the limit; try again later"
            )
        assert request.request_id not in self._requests, "request ids are unique"
        self._requests[request.request_id] = _Request(
            on_output,
            set(range(request.params.n)),
            self._clock(),
            request.prompt.images if request.prompt else (),
        )
        self._num_submitted += request.params.n

    def discard(self, request_id: str, index: int | None) -> bool:
        """Silences a request, or one of its samples. Returns False when there is no such
        request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if index is not None:
            request.unfinished.discard(index)
        if index is None or not request.unfinished:
            del self._requests[request_id]
        return True

    def deliver(self, step: StepReport) -> None:
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
        for request_id, output in step.outputs:
            request = self._requests.get(request_id)
            if request is not None and output.index in request.unfinished:
                output.queue_time, request.queue_time = request.queue_time, None
                self._tell(request_id, request, output)

    def _record(self, seconds: float) -> None:
        if self._step_seconds is None:
            self._step_seconds = Histogram(STEP_BUCKETS)
        self._step_seconds.observe(seconds)
        self._longest_step = max(self._longest_step, seconds)

    def end_all(self, reason: FinishReason, error: str | None) -> None:
        for request_id, request in list(self._requests.items()):
            for index in sorted(request.unfinished):
                # What a listener does may have ended its own request, and others.
                if self._requests.get(request_id) is request:
                    output = GenerationOutput(index, (), reason, 0, error=error)
                    self._tell(request_id, request, output)

    def _tell(self, request_id: str, request: _Request, output: GenerationOutput) -> None:
        if output.finish_reason is not None:
            request.unfinished.discard(output.index)
            if not request.unfinished:
                del self._requests[request_id]
        try:
            request.on_output(output)
        except Exception:
            # One request's fault must not cost the others their tokens.
            logger.exception("request %s failed on its output", request_id)
            self._abort(request_id)


def check_length(request: GenerationRequest, model: ModelInfo) -> None:
    """Raises RequestError when the prompt leaves no room in the context."""
    num_tokens = len(request.prompt_token_ids) + len(request.generated_token_ids)
    if num_tokens >= model.max_model_len:
        raise RequestError(
            f"the prompt has {num_tokens} tokens, which leaves no room to generate in the context "
            f"of {model.max_model_len} tokens",
            param="prompt",
            code="context_length_exceeded",
        )
