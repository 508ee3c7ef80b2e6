"""Backend for models that transcribe speech: a thread that hands windows of audio to a process."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from fastovms.backends.engine_thread import MAX_SLICE, ComputeTurn
from fastovms.backends.job_thread import Job, JobThread
from fastovms.backends.processes import ChildProcess, WorkerFailed, receive, send
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.fair_queue import FairQueue
from fastovms.params import ModelInfo
from fastovms.parts.speech.speech_worker import LoadSpeech, ReadWindow, WindowText
from fastovms.parts.speech.transcript import (
    SAMPLE_RATE,
    WINDOW_SECONDS,
    Audio,
    OnText,
    Samples,
    Segment,
    SpeechInfo,
    SpeechParams,
    Transcript,
)
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)

_WINDOW: Final = WINDOW_SECONDS * SAMPLE_RATE

_FOLLOWING: Final = SAMPLE_RATE
"""Samples after a window that the pipeline gets, too: without them, the window's last frames would
be those of an end, and Whisper would end a sentence there."""

_QUIET: Final = 0.02
"""The loudness of the rest of a window, relative to the window, below which it has no speech.
A louder rest may be the beginning of a sentence, so the next window begins with it."""

_LEAST: Final = SAMPLE_RATE // 5
"""Samples at the end of an audio that are not worth a window."""

StartProcess = Callable[[], tuple[ChildProcess, SpeechInfo]]
"""Starts the process that runs the model, and waits until it has loaded it. Raises
ConfigurationError if it cannot."""


class _Job(Job[Transcript]):
    """The audio of one request, and its transcript so far.

    Attributes:
        position: the sample at which the next window begins.
        started_at: when its first window began; None until then.
    """

    def __init__(
        self,
        audio: Audio,
        params: SpeechParams,
        client: str,
        on_text: OnText,
        queued_at: float,
    ) -> None:
        super().__init__(client, queued_at)
        self.audio = audio
        self.params = params
        self.on_text = on_text
        self.started_at: float | None = None
        self.position = 0
        self.transcript = Transcript()

    @property
    def has_times(self) -> bool:
        """Whether its windows are divided into segments: the next window begins by their times."""
        is_long = self.audio.num_samples > _WINDOW
        return is_long or self.params.has_segments or self.params.has_words

    @property
    def is_complete(self) -> bool:
        left = self.audio.num_samples - self.position
        return left <= 0 or (self.position > 0 and left < _LEAST)

    def take(self, found: WindowText, samples: Samples) -> str:
        """Adds the text of the window at `position`, moves on, and returns the text for the
        client."""
        offset = self.position / SAMPLE_RATE
        transcript, params = self.transcript, self.params
        length = len(samples) / SAMPLE_RATE
        for segment in found.segments if params.has_segments else ():
            end = segment.end if segment.end >= 0 else length
            times = segment.start + offset, min(end, length) + offset
            transcript.segments.append(Segment(*times, segment.text, offset, segment.token_ids))
        transcript.words += [
            word._replace(start=word.start + offset, end=word.end + offset) for word in found.words
        ]
        transcript.num_tokens += found.num_tokens
        if not self.position:
            transcript.language = found.language
            self.params = replace(params, language=found.language or None, prompt="")
        text = found.text if transcript.text else found.text.lstrip()
        transcript.text += text
        is_last = self.position + len(samples) >= self.audio.num_samples
        self.position += len(samples) if is_last else next_window(found.segments, samples)
        return text


def next_window(segments: list[Segment], samples: Samples) -> int:
    """Returns the number of samples after which the window that follows a full window begins.

    Whisper marks the end of a segment only if it has heard it. Speech that goes on at the end of a
    window is therefore read again, from its beginning.
    """
    end = round(max((segment.end for segment in segments), default=-1.0) * SAMPLE_RATE)
    if end <= 0 or any(segment.end < 0 for segment in segments):
        return len(samples)
    rest = samples[end:]
    if len(rest) < _LEAST or _loudness(rest) < _QUIET * _loudness(samples):
        return len(samples)
    return end


def _loudness(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples.astype(np.float32)))))


class WhisperBackend(JobThread[_Job]):
    """Transcribes speech in a `speech_worker`.

    While engines have work, the process runs in slices between their steps: it is stopped by
    SIGSTOP at the end of each slice and resumed at the beginning of the next, whatever it computes.
    Clients take turns with their windows. If the process dies, the request whose audio it read
    fails, and another process is started.

    The process is started on the thread that hands it windows, and is killed when this thread ends,
    even if it is stopped. Creating a backend takes seconds. Raises ConfigurationError if the model
    cannot be loaded.
    """

    name = "speech"

    def __init__(
        self,
        model: ModelInfo,
        start: StartProcess,
        *,
        max_num_queued: int,
        turn: ComputeTurn,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(model, turn, max_num_queued=max_num_queued, clock=clock)
        self._start = start
        self._waiting: FairQueue[_Job] = FairQueue(
            "audios", per_client=max_num_queued, total=2 * max_num_queued
        )
        self._is_stopped = False
        loaded: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=[loaded], name=self.name, daemon=True).start()
        error = loaded.get()
        if error is not None:
            raise error

    # Backend

    @property
    def speech(self) -> SpeechInfo:
        return self._info

    async def transcribe(
        self, audio: Audio, params: SpeechParams, client: str, on_text: OnText
    ) -> Transcript:
        """Transcribes audio, window by window; clients take turns. If the caller cancels, the
        remaining windows are not computed.

        Args:
            audio: must stay readable until the call ends.
            client: the sender.
            on_text: called on the loop with the pieces of the text; must not block or raise.

        Raises:
            Overloaded: too many requests wait already.
            BackendUnavailable: not started or closed.
            EngineFailed: the model could not compute this audio, or has died.
        """
        self._check_open(client)
        job = _Job(audio, params, client, on_text, self._clock())
        transcript: Transcript = await self._result_of(job)
        return transcript

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self._peer.kill()

    def _stop(self) -> bool:
        self._peer.kill()  # it keeps nothing
        return True

    # Thread

    def _run(self, loaded: queue.SimpleQueue[Exception | None]) -> None:
        try:
            self._peer, self._info = self._start()
        except Exception as error:
            loaded.put(error)
            return
        loaded.put(None)
        try:
            while self.failure is None and self._receive():
                job = self._waiting.take()
                if job is not None and not job.is_given_up:
                    self._advance(job)
        except BaseException as error:
            logger.exception("speech: the thread has failed")
            self._link.call(self.fail, f"{type(error).__name__}: {error}")
        finally:
            self._turn.remove_encoder()
            self._peer.end()
            self._link.call(self._link.stopped.set)

    def _receive(self) -> bool:
        """Receives new jobs, and waits for work. Returns whether to continue."""
        while not self._commands.empty() or not len(self._waiting):
            job = self._commands.get()
            if job is None:
                return False
            if job.is_given_up:
                self._waiting.discard(job.client, job)
            else:
                self._waiting.add(job.client, job)
        return True

    def _advance(self, job: _Job) -> None:
        """Computes the next window of a job, and queues the job again if more are left."""
        now = self._clock()
        if job.started_at is None:
            job.started_at = now
        try:
            # The pipeline finds no words if it is ended after the window.
            following = 0 if job.params.has_words else _FOLLOWING
            samples = job.audio.read(job.position, _WINDOW + following)
            self._num_running = 1
            try:
                answer = self._read(job, ReadWindow(samples, job.params, job.has_times))
            finally:
                self._num_running = 0
            samples = samples[:_WINDOW]
        except (EOFError, ConnectionError) as error:
            self._revive(job, error)
            return
        except OSError as error:
            self._link.call(job.settle, EngineFailed(f"the audio cannot be read: {error}"))
            return
        if isinstance(answer, WorkerFailed):
            self._link.call(job.settle, EngineFailed(answer.reason))
            return
        self._counters.num_generated_tokens += answer.num_tokens
        text = job.take(answer, samples)
        if job.has_times and text:
            self._link.call(_tell, job, text)
        if job.is_complete:
            transcript = job.transcript
            transcript.text = transcript.text.rstrip()
            transcript.queue_time = job.started_at - job.queued_at
            transcript.compute_time = self._clock() - job.started_at
            self._link.call(job.settle, transcript)
        else:
            self._waiting.add(job.client, job)

    def _read(self, job: _Job, window: ReadWindow) -> WindowText | WorkerFailed:
        """Returns the process's answer. Raises EOFError or ConnectionError if the process ends."""
        connection = self._peer.connection
        is_sent, is_first = False, True
        while True:
            with self._turn.slice():
                self._signal(is_stopped=False)
                start = self._clock()
                if not is_sent:
                    send(connection, window)
                    is_sent = True
                seconds = self._turn.slice_seconds
                end = start + (MAX_SLICE if seconds is None else seconds)
                answer = None
                while answer is None and connection.poll(max(0.0, end - self._clock())):
                    answer = receive(connection)
                    if isinstance(answer, str):
                        text = answer.lstrip() if is_first else answer
                        if text:
                            is_first = False
                            self._link.call(_tell, job, text)
                        answer = None
                if answer is None and self._turn.slice_seconds is not None:
                    self._signal(is_stopped=True)
            self._note_step(self._clock() - start)
            if answer is not None:
                assert isinstance(answer, WindowText | WorkerFailed)
                return answer

    def _signal(self, *, is_stopped: bool) -> None:
        if is_stopped is not self._is_stopped:
            self._is_stopped = is_stopped
            self._peer.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)

    def _revive(self, job: _Job, error: Exception) -> None:
        """Starts another process after one has ended with a job. Raises ConfigurationError if it
        cannot be started."""
        fate = self._peer.close()
        if self._closing or self.failure is not None:
            return
        logger.error("speech: the process %s (%r) and is started again", fate, error)
        reason = f"the process that transcribes {fate}"
        self._link.call(job.settle, EngineFailed(reason))
        self._peer, self._info = self._start()
        self._is_stopped = False


def _tell(job: _Job, text: str) -> None:
    if not job.done.done() and not job.is_given_up:
        job.on_text(text)


def start_process(load: LoadSpeech) -> tuple[ChildProcess, SpeechInfo]:
    """Starts a process and waits until it has loaded the model; takes seconds. Raises
    ConfigurationError if the model cannot be loaded."""
    # At the end of its connection it could not end by itself while it is stopped.
    process = ChildProcess("fastovms.parts.speech.speech_worker", dies_with_thread=True)
    answer = process.ask(load, f"{load.model_dir} cannot be loaded: its process")
    if isinstance(answer, SpeechInfo):
        return process, answer
    process.close()
    raise ConfigurationError(answer.reason)


def load_whisper(
    model_dir: Path, model: ModelInfo, config: EngineConfig, turn: ComputeTurn
) -> WhisperBackend:
    """Loads a Whisper model; takes seconds, so call it in a thread. Raises ConfigurationError if a
    file is broken, or the device cannot run the model."""
    start = time.perf_counter()
    load = LoadSpeech(model_dir, config.device, config.plugin_config, level_in_use(), form_in_use())
    backend = WhisperBackend(
        model,
        partial(start_process, load),
        max_num_queued=config.max_num_queued_requests,
        turn=turn,
    )
    logger.info("%s: speech, loaded in %.1f s", model.name, time.perf_counter() - start)
    return backend
