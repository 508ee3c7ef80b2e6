"""Makes the events of one response, numbered without gaps, as frames of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from fastovms.api.generation.deltas import SampleDelta, Usage
from fastovms.api.responses.output.output_items import OutputBuilder, OutputForm
from fastovms.api.responses.output.response_object import ResponseForm, ResponseStatus, failed
from fastovms.api.wire.dialect import Dialect
from fastovms.api.wire.error_responses import describe
from fastovms.api.wire.sse_frames import frame
from fastovms.errors import RequestError

_TERMINAL_EVENTS: Final[Mapping[str, str]] = {
    "completed": "completed",
    "incomplete": "incomplete",
    "failed": "failed",
    "cancelled": "incomplete",
}
"""The last event by status. For a cancelled response OpenAI has none of its own."""


class EventEncoder:
    """Collects frames.

    Args:
        named: whether they have `event:` lines.
        first: number of the first event.
    """

    def __init__(self, *, named: bool, first: int = 0) -> None:
        self._named = named
        self._frames: list[bytes] = []
        self._next_number = first

    def emit(self, kind: str, members: Mapping[str, object]) -> None:
        """Adds an event.

        Args:
            kind: the event's type without "response.".
        """
        name = kind if kind == "error" else f"response.{kind}"
        event = {"type": name, "sequence_number": self._next_number, **members}
        self._next_number += 1
        self._frames.append(frame(orjson.dumps(event), name if self._named else ""))

    def skip(self, num_events: int) -> None:
        """Drops the frames before that number, and goes on behind it at the earliest: another
        version of the server may have told the same in more events."""
        first = self._next_number - len(self._frames)
        del self._frames[: max(0, num_events - first)]
        self._next_number = max(self._next_number, num_events)

    def take(self) -> list[bytes]:
        """Returns the frames since the last time, one an event."""
        frames, self._frames = self._frames, []
        return frames


class ResponseRun:
    """Follows one response: its output, its status, and the events that tell of both.

    Attributes:
        status: the response's, as of now.
        output: its items.
    """

    def __init__(
        self,
        form: ResponseForm,
        output_form: OutputForm,
        dialect: Dialect,
        *,
        usage: Callable[[], Usage],
        unix_time: Callable[[], float],
        tells: bool = True,
        for_all: bool = False,
    ) -> None:
        """
        Args:
            usage: returns the tokens so far.
            tells: whether events are made; else there are none to take.
            for_all: whether clients of either dialect may ask for the events, so that they have
                `event:` lines.
        """
        self.form = form
        self.status = ResponseStatus("in_progress")
        self._dialect = dialect
        self._usage = usage
        self._unix_time = unix_time
        self._events = EventEncoder(named=for_all or dialect.responses.names_events)
        self._output_form = output_form
        self._emit = self._events.emit if tells else _say_nothing
        self.output = OutputBuilder(output_form, self._emit)

    def open(self, *, is_queued: bool = False) -> None:
        """Makes the first events."""
        if is_queued:
            self.status = ResponseStatus("queued")
        self._tell("created")
        self._tell(self.status.name)

    def adopt(self, other: ResponseRun) -> None:
        """Takes over what is known of the response now that its model is in memory.

        Args:
            other: a run of the same response, which has told nothing.
        """
        self.form, self._usage, self._output_form = other.form, other._usage, other._output_form
        self.output = OutputBuilder(self._output_form, self._emit)

    def start(self) -> None:
        """Takes note that it no longer waits in a queue."""
        if self.status.name == "queued":
            self.status = ResponseStatus("in_progress")
            self._tell("in_progress")

    def push(self, delta: SampleDelta) -> None:
        self.output.push(delta.pieces, delta.parsed, delta.tokens)
        if delta.finish_reason is not None:
            ended = self.form.ended(
                delta.finish_reason,
                self._usage(),
                self._unix_time(),
                has_cut_call=self.output.has_cut_call,
            )
            self.output.finish(ended.name)
            if self.status.name != "incomplete":  # another sample may have left it incomplete
                self.status = ended

    def cancel(self) -> None:
        self.output.end_item("incomplete")
        self.status = ResponseStatus("cancelled", usage=self._usage())

    def fail(self, error: Exception) -> None:
        message, param, code = describe(error)
        self.output.end_item("incomplete")
        if self._dialect.responses.has_error_events:
            self._events.emit("error", {"code": code, "message": message, "param": param})
        kind = "invalid_prompt" if isinstance(error, RequestError) else "server_error"
        self.status = failed(message, kind)

    def end(self) -> None:
        """Makes the last event, once the status is a terminal one."""
        self._tell(_TERMINAL_EVENTS[self.status.name])

    def note_not_kept(self) -> None:
        """Takes note that the store has failed."""
        self.form = self.form.not_kept()

    def interrupted_events(self, response: Mapping[str, Any], start: int) -> list[bytes]:
        """Returns what `interrupted_events` does, in this response's dialect."""
        return interrupted_events(response, start, self._dialect)

    def body(self) -> dict[str, object]:
        """Returns the response as of now."""
        return self.form.body(self.status, self.output.snapshot())

    def skip_events(self, num_events: int) -> None:
        """Takes note that so many events, from the first on, have been told by somebody else."""
        self._events.skip(num_events)

    def take_events(self) -> list[bytes]:
        """Returns the frames since the last time, one an event."""
        return self._events.take()

    def _tell(self, kind: str) -> None:
        self._events.emit(kind, {"response": self.body()})


def interrupted_events(response: Mapping[str, Any], start: int, dialect: Dialect) -> list[bytes]:
    """Returns what is left to say of a background response that nobody goes on with, to a client
    that has the events before number `start`.

    Args:
        response: the object that tells of its failure, or that it was cancelled.
    """
    encoder = EventEncoder(named=True, first=start)
    if not start:
        encoder.emit("created", {"response": {**response, **ResponseStatus("queued").members()}})
    if response["status"] == "failed" and dialect.responses.has_error_events:
        encoder.emit("error", {**response["error"], "param": None})
    encoder.emit(_TERMINAL_EVENTS[response["status"]], {"response": response})
    return encoder.take()


def _say_nothing(kind: str, members: Mapping[str, object]) -> None:
    pass
