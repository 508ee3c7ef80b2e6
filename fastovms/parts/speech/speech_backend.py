"""The backend for speech recognition models: a thread that sends windows of audio to a process."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.job_thread import Job
from fastovms.backends.sliced_process import SlicedProcess, start_process
from fastovms.config import EngineConfig
from fastovms.errors import EngineFailed
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
"""The number of samples after a window that the pipeline also gets. Without them, the window would
end in silence, and Whisper would end a sentence there."""

_QUIET: Final = 0.02
"""If the rest of a window after the last segment is less loud than this fraction of the whole
window, it has no speech. A louder rest may be the beginning of a sentence, so the next window
begins with it."""

_SEARCHED: Final = 5 * SAMPLE_RATE
_PAUSE: Final = SAMPLE_RATE // 10
"""The number of samples at the end of a window that are searched for a pause, and the number of
samples of a pause."""

_LEAST: Final = SAMPLE_RATE // 5
"""A rest of the audio with fewer samples than this is not transcribed."""


class _Job(Job[Transcript]):
    """The audio of one request, and its transcript so far.

    Attributes:
        keeps_prompt: whether all windows get the prompt; Whisper gets its own preceding text
            instead.
        position: the sample at which the next window begins.
        started_at: the time at which the first window was begun; None before.
    """

    def __init__(
        self,
        audio: Audio,
        params: SpeechParams,
        client: str,
        on_text: OnText,
        queued_at: float,
        *,
        keeps_prompt: bool,
    ) -> None:
        super().__init__(client, queued_at)
        self.audio = audio
        self.params = params
        self.on_text = on_text
        self.keeps_prompt = keeps_prompt
        self.started_at: float | None = None
        self.position = 0
        self.transcript = Transcript()

    @property
    def has_times(self) -> bool:
        """Whether windows are divided into segments, whose times determine where the next window
        begins."""
        is_long = self.audio.num_samples > _WINDOW
        return is_long or self.params.has_segments or self.params.has_words

    @property
    def is_complete(self) -> bool:
        left = self.audio.num_samples - self.position
        return left <= 0 or (self.position > 0 and left < _LEAST)

    def take(self, found: WindowText, samples: Samples) -> str:
        """Adds the text of the window at `position`, advances `position`, and returns the text to
        stream."""
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
            prompt = params.prompt if self.keeps_prompt else ""
            self.params = replace(params, language=found.language or None, prompt=prompt)
        text = found.text if transcript.text else found.text.lstrip()
        transcript.text += text
        is_last = self.position + len(samples) >= self.audio.num_samples
        self.position += len(samples) if is_last else next_window(found.segments, samples)
        return text


def next_window(segments: list[Segment], samples: Samples) -> int:
    """Returns the number of samples from the beginning of a full window to that of the next one.

    Whisper reports the end of a segment only if the segment ends within the window. Speech that
    continues at the end of a window is therefore transcribed again from its beginning.
    """
    end = round(max((segment.end for segment in segments), default=-1.0) * SAMPLE_RATE)
    if end <= 0 or any(segment.end < 0 for segment in segments):
        return len(samples)
    rest = samples[end:]
    if len(rest) < _LEAST or _loudness(rest) < _QUIET * _loudness(samples):
        return len(samples)
    return end


def pause_at_end(samples: Samples) -> int:
    """Returns the number of samples up to the middle of the quietest tenth of a second near the end
    of a full window, where a model without times is interrupted."""
    tail = samples[-_SEARCHED:].astype(np.float32).reshape(-1, _PAUSE)
    quietest = int(np.argmin(np.square(tail).sum(axis=1)))
    return len(samples) - _SEARCHED + quietest * _PAUSE + _PAUSE // 2


def _loudness(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples.astype(np.float32)))))


class SpeechBackend(SlicedProcess[_Job, SpeechInfo]):
    """Transcribes speech in a `speech_worker` process, window by window."""

    name = "speech"
    items = "audios"
    work = "transcribes"

    @property
    def speech(self) -> SpeechInfo:
        """The properties of the speech model."""
        return self._info

    async def transcribe(
        self, audio: Audio, params: SpeechParams, client: str, on_text: OnText
    ) -> Transcript:
        """Transcribes audio window by window; clients take turns. If the caller is cancelled, the
        remaining windows are not computed.

        Args:
            audio: must stay readable until the call ends.
            client: the key or address of the sender.
            on_text: called on the event loop with pieces of the text; must not block or raise.

        Raises:
            Overloaded: too many requests wait already.
            BackendUnavailable: the backend is not started, or closed.
            EngineFailed: the model could not process the audio, or the process has died.
        """
        keeps_prompt = not self._info.finds_times
        with self._place(client):
            job = _Job(audio, params, client, on_text, self._clock(), keeps_prompt=keeps_prompt)
            transcript: Transcript = await self._result_of(job)
            return transcript

    # The following methods run in the worker thread.

    def _compute(self, job: _Job) -> bool:
        """Computes the next window of a job. Returns whether further windows remain."""
        now = self._clock()
        if job.started_at is None:
            job.started_at = now
        # The pipeline reports no words if it is stopped after the window, so no samples may follow.
        following = _FOLLOWING if self._info.finds_times and not job.params.has_words else 0
        try:
            samples = job.audio.read(job.position, _WINDOW + following)
        except OSError as error:
            raise EngineFailed(f"the audio cannot be read: {error}") from None
        if not self._info.finds_times and job.position + len(samples) < job.audio.num_samples:
            samples = samples[: pause_at_end(samples)]
        found = self._read(job, ReadWindow(samples, job.params, job.has_times))
        self._counters.num_generated_tokens += found.num_tokens
        text = job.take(found, samples[:_WINDOW])
        if job.has_times and text:
            self._link.call(_report, job, text)
        if not job.is_complete:
            return True
        transcript = job.transcript
        transcript.text = transcript.text.rstrip()
        transcript.queue_time = job.started_at - job.queued_at
        transcript.compute_time = self._clock() - job.started_at
        self._link.call(job.settle, transcript)
        return False

    def _read(self, job: _Job, window: ReadWindow) -> WindowText:
        """Returns the transcript of a window. Raises as `_ask` does."""
        is_first = True

        def on_part(text: str) -> None:
            nonlocal is_first
            text = text.lstrip() if is_first else text
            if text:
                is_first = False
                self._link.call(_report, job, text)

        return self._ask(window, WindowText, on_part)


def _report(job: _Job, text: str) -> None:
    if not job.done.done() and not job.is_given_up:
        job.on_text(text)


def load_speech(
    model_dir: Path, model: ModelInfo, config: EngineConfig, turn: ComputeTurn
) -> SpeechBackend:
    """Loads a speech recognition model. Takes seconds, so call it in a thread. Raises
    ConfigurationError if a file is broken or the device cannot run the model."""
    start = time.perf_counter()
    load = LoadSpeech(model_dir, config.device, config.plugin_config, level_in_use(), form_in_use())
    backend = SpeechBackend(
        model,
        partial(start_process, "fastovms.parts.speech.speech_worker", load, SpeechInfo),
        max_num_queued=config.max_num_queued_requests,
        turn=turn,
    )
    logger.info("%s: speech model, loaded in %.1f s", model.name, time.perf_counter() - start)
    return backend
