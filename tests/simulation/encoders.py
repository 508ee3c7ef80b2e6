"""Encoder models whose rows are a function of a text's tokens, and which fail on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fastovms.api.body import FairThread
from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.backends.job_thread import JobThread
from fastovms.params import Task
from fastovms.parts.embeddings.encoder import EncoderInfo
from fastovms.parts.embeddings.encoder_backend import QueuedText, ThreadedEncoder
from fastovms.parts.embeddings.encoder_model import EncoderBatch, EncoderModel
from fastovms.parts.embeddings.served import ServedEncoder
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.encoder_api import PAIR, SEP, ByteTexts
from tests.simulation.model import HANG_SECONDS, NAN, STALL, STALL_SECONDS, Pace, model_info
from tests.simulation.world import World, running

ENCODERS: Final = {
    "vectors": EncoderInfo(Task.EMBEDDINGS, 8),
    "ranks": EncoderInfo(Task.RERANK, 1),
    "joined": EncoderInfo(Task.RERANK, 2, joins_pairs=True),
}
"""All encoder models that there ever are. A text with the byte NAN or STALL makes one fail."""

MAX_LENGTH: Final = 64
"""The tokens of a text at most, with those around it."""

_MOST_STEPS: Final = 8
"""How many steps of up to three engines begin at most before the next slice."""

_MOST_SLICES: Final = len(ENCODERS)
"""How many slices others have at most while an encoder, or a model of speech, waits for its own."""

_MOST_VAIN: Final = 1
"""How many slices are computed of a batch that nobody waits for any more."""


def _digest(name: str, token_ids: Sequence[int], second: Sequence[int]) -> bytes:
    text = ",".join(map(str, token_ids)) + ";" + ",".join(map(str, second))
    return blake2b(f"{name}:{text}".encode(), digest_size=16).digest()


def _row(digest: bytes, width: int) -> NDArray[np.float32]:
    if not any(digest):
        return np.full(width, np.nan, np.float32)
    return np.frombuffer(digest, np.uint16)[:width].astype(np.float32) / 8192 - 4


def row_of(name: str, token_ids: Sequence[int], num_second: int = 0) -> NDArray[np.float32]:
    """Returns the row of a text: 8 numbers from -4 to 4 that depend on each of its tokens.

    Args:
        name: of the weights.
        num_second: how many tokens at the end belong to the second text of a pair.
    """
    types = [0] * (len(token_ids) - num_second) + [1] * num_second
    return _row(_digest(name, token_ids, types), 8)


class SimEncoder(EncoderModel):
    """Takes virtual time for its segments, each of which passes on what the one before has made.
    As in OpenVINO, the output of a segment is valid until that segment runs again.

    Attributes:
        fault: returns "raise", "hang", or "" for none.
    """

    def __init__(self, info: EncoderInfo, num_segments: int, pace: Pace, name: str) -> None:
        self.info = info
        self.fault: Callable[[], str] = lambda: ""
        self._pad_token_id, self._max_length = 0, MAX_LENGTH
        self._name, self._pace = name, pace
        self._outputs: list[list[bytes]] = [[] for _ in range(num_segments)]
        self._rows = np.empty((0, info.width), np.float32)

    @property
    def num_segments(self) -> int:
        return len(self._outputs)

    def compute(self, batch: EncoderBatch, segment: int) -> None:
        thread = running()
        fault, token_ids = self.fault(), batch.inputs["input_ids"]
        seconds = self._pace.step + self._pace.token * batch.num_tokens
        seconds = seconds / self.num_segments + HANG_SECONDS * (fault == "hang")
        if segment == 0 and STALL in token_ids:
            seconds += STALL_SECONDS
        thread.world.note("encode", self._name, segment, *token_ids.shape)
        thread.world.sleep(seconds)
        if fault == "raise":
            raise RuntimeError("the device is gone")
        made = self._first(batch) if segment == 0 else list(batch.carried)
        self._outputs[segment][:] = made
        batch.carried = self._outputs[segment]
        if segment == self.num_segments - 1:
            if len(made) > len(self._rows):
                self._rows = np.empty((len(made), self.info.width), np.float32)
            for row, digest in enumerate(made):
                self._rows[row] = _row(digest, self.info.width)
            batch.carried = SimpleNamespace(data=self._rows[: len(made)])

    def _first(self, batch: EncoderBatch) -> list[bytes]:
        names = ("input_ids", "token_type_ids", "attention_mask")
        found = []
        for ids, types, mask in zip(*(batch.inputs[name] for name in names), strict=True):
            seen = ids[mask == 1].tolist()
            digest = _digest(self._name, seen, types[mask == 1].tolist())
            found.append(bytes(16) if NAN in seen else digest)
        return found


def jobs_kept(backend: JobThread[Any], num_queued: int) -> str:
    """Returns what is left of requests that have ended, for people; "" = nothing.

    Args:
        num_queued: how many pieces of work its thread has in its queue.
    """
    left = {
        "jobs": len(backend._jobs),
        "queued": num_queued,
        "running": backend._num_running,
        "commands": backend._commands.qsize(),
    }
    return ", ".join(f"{number} {name}" for name, number in left.items() if number)


class SimEncoderBackend(ThreadedEncoder):
    """Checks its books after each batch, and that it computes for somebody."""

    def __init__(self, world: World, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._world = world
        self._num_vain = 0

    @property
    def is_live(self) -> bool:
        return self.failure is None and not self._closing

    def _compute(self, texts: Sequence[QueuedText[Any]]) -> None:
        self._num_vain = 0
        priorities = {text.job.priority for text in texts}
        waiting = [priority for priority, _ in self._texts._jobs]
        if len(priorities) > 1 or any(one < other for one in waiting for other in priorities):
            self._world.fail("priority", f"{priorities} are computed, and {waiting} wait")
        super()._compute(texts)
        try:
            self._texts.check()
        except AssertionError as error:
            self._world.fail("books", str(error), error)

    def _note_step(self, seconds: float) -> None:
        super()._note_step(seconds)
        self._num_vain = 0 if self._jobs else self._num_vain + 1
        if self._num_vain == _MOST_VAIN + 1:
            self._world.fail("vain", f"{self.model.name} computes what nobody waits for")

    def kept(self) -> str:
        return jobs_kept(self, self._texts.num_texts)


class _Tickets(deque[object]):
    """Those of encoders that wait for their slices.

    Args:
        count: counts something.

    Attributes:
        begun: the counts when the ticket that was removed last was added.
    """

    def __init__(self, count: Callable[[], tuple[int, int]]) -> None:
        super().__init__()
        self._count = count
        self._counts: dict[object, tuple[int, int]] = {}
        self.begun = (0, 0)

    def append(self, ticket: object) -> None:
        super().append(ticket)
        self._counts[ticket] = self._count()

    def remove(self, ticket: object) -> None:
        super().remove(ticket)
        self.begun = self._counts.pop(ticket)


class CheckedTurn(ComputeTurn):
    """Checks that steps and slices take turns, and that a slice comes in time.

    Args:
        is_beside: returns whether another process computes at the moment, which may only begin in
            a slice.
    """

    def __init__(self, world: World, engines: ActiveEngines, is_beside: Callable[[], bool]) -> None:
        self._is_beside, self._num_beside = is_beside, 0
        self._num_in_steps = self._num_in_slices = self._num_begun = self._num_slices = 0
        super().__init__(engines)
        self._world = world
        self._waiting = _Tickets(lambda: (self._num_begun, self._num_slices))

    @contextmanager
    def step(self) -> Iterator[None]:
        takes_turns = bool(self._num_encoders)
        with super().step():
            self._num_in_steps += takes_turns
            self._num_begun += takes_turns
            self._num_beside = self._num_beside + 1 if self._is_beside() else 0
            if self._num_beside > _MOST_STEPS:
                self._world.fail("turn", f"{self._num_beside} steps beside another process")
            self._check()
            try:
                yield
            finally:
                self._num_in_steps -= takes_turns

    @contextmanager
    def slice(self) -> Iterator[None]:
        with super().slice():
            num_steps = self._num_begun - self._waiting.begun[0]
            num_slices = self._num_slices - self._waiting.begun[1]
            if num_slices > _MOST_SLICES or num_steps > _MOST_STEPS * (1 + num_slices):
                self._world.fail("late", f"after {num_steps} steps and {num_slices} slices")
            self._num_slices += 1
            self._num_in_slices += 1
            self._check()
            try:
                yield
            finally:
                self._num_in_slices -= 1

    def _check(self) -> None:
        if self._num_in_slices > 1 or (self._num_in_slices and self._num_in_steps):
            found = f"{self._num_in_slices} slices and {self._num_in_steps} steps at once"
            self._world.fail("turn", found)

    def kept(self, num_encoders: int) -> str:
        """Returns what is left of slices and steps that have ended, for people; "" = nothing.

        Args:
            num_encoders: how many encoders are in memory.
        """
        found = (len(self._waiting), self._num_stepping, self._is_slicing, self._num_working)
        is_right = not any(found) and self._num_encoders == num_encoders
        return "" if is_right else f"the turn is {found}, with {self._num_encoders} encoders"


def served_encoder(server: Any, name: str, weights: str) -> ServedEncoder:
    """Returns the encoder model of a `SimServer`."""
    settings = server.settings
    model = SimEncoder(ENCODERS[name], settings.num_segments, settings.pace, weights)
    model.fault = lambda: server.encoder_fault
    backend = SimEncoderBackend(
        server.world,
        model,
        replace(model_info(name, MAX_LENGTH), vocab_size=SEP + 1),
        max_batch_tokens=settings.encoder.max_batch_tokens,
        max_num_queued=settings.engine.max_num_queued_requests,
        turn=server.turn,
    )
    metrics = GenerationMetrics(name, backend.stats, has_kv_cache=False)
    tokenizing: FairThread[Any] = FairThread("texts to encode", per_client=100, total=400)
    texts: Any = ByteTexts(None if ENCODERS[name].joins_pairs else PAIR)
    return ServedEncoder(backend, texts, settings.encoder, metrics, tokenizing)
